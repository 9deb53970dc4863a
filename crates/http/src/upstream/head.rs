//! Reads the head of an answer.

use std::pin::pin;

use weir_engine::{breathe, spend};
use weir_log::Level;
use weir_upstream::{Connection, Failure};

use super::client::{Waited, wait};
use super::fault::{self, Doing, Fault};
use super::passing::UpstreamConf;
use super::protocol::{Answer, Found, Protocol, Reader};
use super::transport::Transport;
use super::upload::{self, UnsentRequest};
use crate::request::Request;

/// Reads until the head is complete. `buf` then has the head, and the beginning of the body that
/// was received with it. Meanwhile the `rest` of the request is sent. Afterwards, `rest` is the
/// part that was not.
pub async fn read<P: Protocol>(
    r: &mut Request,
    passing: &UpstreamConf,
    transport: &Transport,
    protocol: &mut P,
    buf: &mut Vec<u8>,
    rest: &mut Option<Box<UnsentRequest>>,
) -> Result<Answer, Fault> {
    let limit = passing.head_room();
    let (mut interim, mut framing) = (0, 0);
    loop {
        let before = buf.len();
        if let (Transport::Own(connection), Some(left)) = (transport, &mut *rest)
            && left.is_wanted()
        {
            Box::pin(send_on(r, passing, connection, protocol, left, buf)).await?;
            rest.take_if(|rest| rest.is_over());
        }
        receive(r, passing, transport, buf).await?;
        let received = buf.len();
        let reader = protocol.reader();
        reader.unframe(buf, before);
        reader.said().iter().for_each(|text| fault::complain(r, text, Doing::ReadingHead));
        framing += received - buf.len();
        loop {
            match protocol.reader().head(r, buf) {
                Err(error) => {
                    fault::complain(r, error, Doing::ReadingHead);
                    return Err(Fault::Peer(Failure::InvalidHeader));
                }
                Ok(Found::Head(answer)) if answer.end <= limit => return Ok(answer),
                Ok(Found::More) if framing > FRAMING => {
                    fault::complain(
                        r,
                        "upstream sent too much before its header",
                        Doing::ReadingHead,
                    );
                    return Err(Fault::Peer(Failure::InvalidHeader));
                }
                Ok(Found::More) if buf.len() < limit => break,
                Ok(Found::Head(_) | Found::More) => {
                    fault::complain(r, "upstream sent too big header", Doing::ReadingHead);
                    return Err(Fault::Peer(Failure::InvalidHeader));
                }
                Ok(Found::Interim(status, headers, end)) => {
                    interim += end;
                    if interim > INTERIM.max(limit) {
                        fault::complain(
                            r,
                            "upstream sent too many interim responses",
                            Doing::ReadingHead,
                        );
                        return Err(Fault::Peer(Failure::InvalidHeader));
                    }
                    if interim <= limit {
                        super::seen::interim(r, passing, status, &headers, buf).await?;
                    } else {
                        let doing = Doing::ReadingHead.text();
                        r.log(
                            Level::Info,
                            format_args!("upstream sent too big early hints {doing}"),
                        );
                    }
                    spend((buf.len() / MOVED) as u32);
                    buf.drain(..end.min(buf.len()));
                    breathe().await;
                    if buf.is_empty() {
                        break;
                    }
                }
            }
        }
    }
}

/// Sends the rest of the request, until the server sends more or the rest is sent.
async fn send_on<P: Protocol>(
    r: &mut Request,
    passing: &UpstreamConf,
    connection: &Connection,
    protocol: &P,
    rest: &mut UnsentRequest,
    buf: &[u8],
) -> Result<(), Fault> {
    let doing = if buf.is_empty() { Doing::Sending } else { Doing::ReadingHead };
    match upload::beside(r, passing, connection, protocol, rest).await? {
        Ok(()) => Ok(()),
        Err(error) => Err(fault::operation(r, "recv()", &error, doing)),
    }
}

/// Waits for bytes and appends them. No buffer is held while it waits.
async fn receive(
    r: &mut Request,
    passing: &UpstreamConf,
    transport: &Transport,
    buf: &mut Vec<u8>,
) -> Result<(), Fault> {
    transport.set_deadline(Some(r.event_loop.handle.now() + passing.read_within(r)));
    // Before the first byte, the request may still be on its way.
    let doing = if buf.is_empty() { Doing::Sending } else { Doing::ReadingHead };
    loop {
        let waited = wait(r, passing, pin!(transport.readable()), Some(doing)).await;
        let ready = match waited {
            Waited::Gone => return Err(Fault::ClientLeft),
            Waited::For(ready) => ready,
        };
        if buf.capacity() == 0 {
            *buf = r.event_loop.handle.take_buf(passing.first_read);
        } else if buf.capacity() == buf.len() {
            buf.reserve(passing.first_read);
        }
        let received = ready.and_then(|()| transport.try_recv(buf));
        match received {
            Ok(None) => {}
            Ok(Some(0)) => {
                fault::complain(r, "upstream prematurely closed connection", Doing::ReadingHead);
                return Err(Fault::Peer(Failure::Error));
            }
            Ok(Some(n)) => {
                if let Some(attempt) = r.contexts.upstream.attempt() {
                    attempt.received += n as u64;
                }
                return Ok(());
            }
            Err(error) => {
                return Err(fault::operation(r, "recv()", &error, Doing::ReadingHead));
            }
        }
    }
}

/// The most bytes of interim answers (1xx).
const INTERIM: usize = 64 * 1024;
/// The most bytes of framing and of other records before the head is complete. Most of them are log
/// messages of FastCGI servers.
const FRAMING: usize = 1 << 20;
/// Bytes to move that cost one point of the budget.
const MOVED: usize = 256;
