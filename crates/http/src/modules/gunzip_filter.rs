//! Decompresses gzip responses for clients that do not accept gzip. nginx:
//! ngx_http_gunzip_filter_module.

use std::io;

use flate2::{Decompress, FlushDecompress, Status};
use weir_conf::Directive as Line;
use weir_engine::{Boxed, Chain, operation};
use weir_log::Level;

use crate::answer::filters::{BodyFilter, Filtered, into_bytes};
use crate::config::module::Module;
use crate::config::scope::{Directive, setting};
use crate::modules::gzip_filter;
use crate::phases::Step;
use crate::request::Request;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};

/// The size of an output buffer.
const ROOM: usize = 32 * 1024;
/// The output that is collected before it is sent ahead. The output may be a thousand times the
/// input.
const WAITING: u64 = 128 * 1024;

/// Output up to this length is copied behind other output.
const SHORT: usize = 4096;

/// Settings.
#[derive(Debug, Clone)]
pub struct Conf {
    on: bool,
    /// No effect: weir sizes these buffers itself.
    buffers: (u64, u64),
}

impl Default for Conf {
    fn default() -> Self {
        Conf { on: false, buffers: (32, 4096) }
    }
}

impl Settings for Conf {}

const DIRECTIVES: &[Directive] = &[
    setting!(
        "gunzip",
        CONF.on,
        Line::flag,
        "Decompresses gzip responses for clients that do not accept gzip."
    ),
    setting!(
        "gunzip_buffers",
        CONF.buffers,
        Line::buffers,
        "Accepted: weir sizes these buffers itself."
    ),
];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module { name: "http_gunzip", directives: DIRECTIVES, ..Module::NEW };

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    CONF.of(conf).on
}

/// Header filter.
pub fn header_filter(r: &mut Request) -> Result<(), Step> {
    let coding = r.response.content_encoding.as_deref().unwrap_or_default();
    if !coding.eq_ignore_ascii_case(b"gzip") {
        return Ok(());
    }
    r.response.varies_by_encoding = true;
    if gzip_filter::allowed(r) {
        return Ok(());
    }
    r.response.content_encoding = None;
    r.response.expect_changes();
    r.response.weaken_etag();
    r.add_body_filter(Box::new(Gunzip {
        inflate: Decompress::new_gzip(15),
        between_members: false,
        has_output: false,
    }));
    Ok(())
}

struct Gunzip {
    inflate: Decompress,
    /// Whether a gzip member has ended and the next has not begun.
    between_members: bool,
    /// Whether there was any output.
    has_output: bool,
}

impl BodyFilter for Gunzip {
    fn module(&self) -> &'static str {
        "gunzip_filter"
    }

    fn filter<'a>(&'a mut self, r: &'a mut Request, input: Chain, last: bool) -> Filtered<'a> {
        Filtered::Later(Boxed::new(move || self.run(r, input, last)))
    }
}

impl Gunzip {
    async fn run(&mut self, r: &mut Request, input: Chain, last: bool) -> io::Result<Chain> {
        let mut out = Chain::new();
        let done = self.unpack(r, input, &mut out, last).await;
        if done.is_err() && self.has_output {
            // Output before the error is valid, as with a server that breaks off, so it is sent. If
            // there was no output, the head is not sent either: an HTTP/1.0 client would take it
            // for an empty response.
            r.send_ahead(std::mem::take(&mut out)).await?;
            r.send_queued().await?;
            r.flush_delivered().await?;
        }
        done.map(|()| out)
    }

    async fn unpack(
        &mut self,
        r: &mut Request,
        mut input: Chain,
        out: &mut Chain,
        last: bool,
    ) -> io::Result<()> {
        while let Some(segment) = input.pop() {
            let bytes = into_bytes(segment);
            let mut at = 0;
            while let Some(piece) = self.next(bytes.get(at..).unwrap_or_default(), &mut at, r)? {
                self.has_output |= !piece.is_empty();
                // Copied behind other output: many short members must not keep a buffer each.
                if piece.len() > SHORT || !out.extend_last(&piece) {
                    out.push(piece);
                }
                if self.between_members && at < bytes.len() {
                    // The next member needs a new decompressor, which takes time.
                    r.event_loop.handle.heavy().await;
                }
                if out.len() >= WAITING {
                    r.send_ahead(std::mem::take(out)).await?;
                    r.send_queued().await?;
                }
            }
        }
        if last && !self.between_members {
            let text = format_args!("inflate() returned -5 on response end{}", r.sending());
            r.log(Level::Error, text);
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    /// The next output. `None` when the input is used up.
    fn next(&mut self, input: &[u8], at: &mut usize, r: &Request) -> io::Result<Option<Vec<u8>>> {
        if self.between_members {
            if input.is_empty() {
                return Ok(None);
            }
            self.inflate = Decompress::new_gzip(15);
            self.between_members = false;
        }
        let before = self.inflate.total_in();
        let mut out = Vec::with_capacity(ROOM);
        let inflate = || self.inflate.decompress_vec(input, &mut out, FlushDecompress::None);
        let status = operation("decompress", inflate);
        let read = (self.inflate.total_in() - before) as usize;
        *at += read;
        match status {
            Ok(Status::StreamEnd) => self.between_members = true,
            Ok(Status::Ok | Status::BufError) => {}
            // Output before the error is returned first. The next call returns the error.
            Err(_) if !out.is_empty() => {}
            Err(error) => {
                r.log(Level::Error, format_args!("inflate() failed: {error}{}", r.sending()));
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        let moved = read > 0 || !out.is_empty();
        Ok(moved.then_some(out))
    }
}
