//! Reads the PROXY header that a balancer sends before the bytes of its client.

use std::io;
use std::mem;

use weir_proto::proxy_protocol::{HeaderError, ProxyHeader, ProxyProgress, cut_short, parse};

use crate::wire::Wire;

/// Room for one read. Headers fit, unless they have many TLVs.
const READ: usize = 1024;

/// Why a connection has no PROXY header.
#[derive(Debug)]
pub enum ProxyHeaderError {
    /// The received bytes are no header.
    Invalid(HeaderError),
    /// The peer closed the connection before it sent anything.
    Closed,
    /// The connection failed, or the deadline passed.
    Io(io::Error),
}

impl Wire {
    /// Reads the PROXY header. `None` if it names no client. `buf` holds bytes that were received
    /// before, and afterwards those behind the header. The wire's deadline applies.
    pub async fn read_proxy_header(
        &self,
        buf: &mut Vec<u8>,
    ) -> Result<Option<Box<ProxyHeader>>, ProxyHeaderError> {
        loop {
            match parse(buf).map_err(ProxyHeaderError::Invalid)? {
                ProxyProgress::Done { header, len } => {
                    buf.drain(..len);
                    return Ok(header);
                }
                ProxyProgress::More => {}
            }
            buf.reserve(READ);
            let (result, back) = self.recv(mem::take(buf)).await;
            *buf = back;
            match result {
                Ok(0) if buf.is_empty() => return Err(ProxyHeaderError::Closed),
                Ok(0) => return Err(ProxyHeaderError::Invalid(cut_short(buf))),
                Ok(_) => {}
                Err(error) => return Err(ProxyHeaderError::Io(error)),
            }
        }
    }
}
