//! Requests of a connection: the streams that carry them, and their fields.

use std::rc::Rc;
use std::sync::PoisonError;

use weir_engine::spend;
use weir_proto::http1::{ComposeError, HeadDraft, HeadError, HeadLimits, Version};
use weir_proto::http3::ErrorCode;
use weir_proto::http3::qpack::{Decoded, FieldLimits};
use weir_quic::Dir;
use weir_ssl::ocsp::WaitingConnection;
use weir_ssl::server::Judged;

use super::Link;
use crate::connection::streamed::Fields;
use crate::http3::request;
use crate::http3::stream::{Stream, StreamError};

/// What a request costs of the task's budget, beside its fields.
const REQUEST: u32 = 32;
/// So many bytes of fields cost a point.
const FIELDS: usize = 4;

impl Link {
    /// The client's certificate, if it had to show one, was judged.
    pub(super) fn judge(&self) {
        let context = {
            let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            found.as_ref().and_then(|secure| secure.shown.context.clone())
        };
        let judged = context
            .as_ref()
            .and_then(|context| self.quic.tls(|tls| context.look_at(tls)).flatten());
        match (context, judged) {
            (Some(context), Some(Ok(path))) if context.ocsp.is_some() => {
                let Some(link) = self.me.upgrade() else { return };
                let event_loop = self.event_loop();
                let log = self.conf().core.error_log.clone();
                let timeout = self.default.get().conf.client_header_timeout;
                self.event_loop().handle.spawn(async move {
                    let waiting = WaitingConnection {
                        handle: &event_loop.handle,
                        log: &log,
                        number: link.number,
                        until: event_loop.handle.now() + timeout,
                    };
                    let fault = context.ask(Some(Ok(path)), waiting).await;
                    link.judged(fault);
                });
            }
            (_, Some(judged @ Err(_))) => self.judged(Judged::err(judged)),
            _ => self.judged(None),
        }
    }

    pub(super) fn judged(&self, fault: Option<weir_tls::x509::VerifyError>) {
        {
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(secure) = found.as_mut() {
                secure.shown.fault = fault;
            }
        }
        self.ready.set(true);
        self.accept();
    }

    /// Takes the streams that the client has opened.
    pub(super) fn accept(&self) {
        if !self.ready.get() {
            return;
        }
        while let Some(id) = self.quic.accept(Dir::Bi) {
            let Some(link) = self.me.upgrade() else { return };
            // What requests share must be there before the first.
            if self.conn().is_err() {
                self.close(ErrorCode::Internal);
            }
            if self.over.get() {
                return;
            }
            if self.leaving.get() {
                self.quic.stop(id, ErrorCode::RequestRejected as u64);
                self.quic.reset(id, ErrorCode::RequestRejected as u64);
                continue;
            }
            self.count_request();
            let stream = Stream::new(link, id);
            self.streams.borrow_mut().insert(id, stream.clone());
            stream.read_on();
            if !stream.has_begun() && !stream.is_gone() {
                self.expect_head(&stream);
            }
        }
    }

    /// A head must come within `client_header_timeout`.
    pub(super) fn expect_head(&self, stream: &Rc<Stream>) {
        let timeout = self.server().conf.client_header_timeout;
        let sleep = self.event_loop().handle.sleep(timeout);
        // A connection that ends does not stay in memory until then.
        let stream = Rc::downgrade(stream);
        self.event_loop().handle.spawn(async move {
            sleep.await;
            let stream = stream.upgrade();
            if let Some(stream) = stream.filter(|stream| !stream.has_begun() && !stream.is_gone()) {
                if !stream.link.cut(&stream, ComposeError::TimedOut) {
                    stream.link.log(format_args!("{}", crate::carrier::TIMED_OUT));
                }
                stream.reset(ErrorCode::RequestIncomplete);
            }
        });
    }

    /// A head has come in whole. False if it refers to what has not come yet.
    pub fn head(&self, stream: &Rc<Stream>, section: &[u8]) -> Result<bool, StreamError> {
        spend(REQUEST + (section.len() / FIELDS) as u32);
        let limits = &self.server().conf.head_limits;
        let sizes = FieldLimits { field: limits.line, block: limits.total };
        let mut scratch = self.event_loop().take_scratch();
        let (parser, buf) = scratch.head();
        let limits_of = |host: &[u8]| self.head_limits_of(host);
        let mut draft = HeadDraft { limits, limits_of: &limits_of, parser, buf };
        let mut composer = self.composer.borrow_mut();
        let decoded =
            self.decoder.borrow_mut().decode(stream.id.into(), section, sizes, |name, value| {
                composer.field(name, value, &mut draft)
            });
        match decoded {
            Ok(Decoded::Whole | Decoded::TooLarge) => {}
            Ok(Decoded::Blocked(_)) => {
                self.event_loop().give_scratch(scratch);
                return Ok(false);
            }
            Err(error) => {
                self.event_loop().give_scratch(scratch);
                return Err(StreamError::Fields(error));
            }
        }
        let len = stream.understood();
        let ended = stream.sees_end();
        let verdict = match composer.finish(ended, &mut draft) {
            Ok(()) if decoded == Ok(Decoded::TooLarge) => Err(ComposeError::TooLarge),
            verdict => verdict,
        };
        drop(composer);
        let announced = draft.parser.head().content_length.filter(|_| verdict.is_ok());
        stream.begin(announced);
        self.acknowledge();
        let begun = stream.first_bytes();
        request::start(stream.clone(), Fields { scratch, verdict, len, ended, begun });
        Ok(true)
    }

    /// What heads may be like for the server of this host name, if it has one of its own.
    fn head_limits_of(&self, host: &[u8]) -> Option<&'static HeadLimits> {
        let (site, conn) = (self.event_loop().site, self.conn().ok()?);
        site.head_limits_of(&conn, host)
    }

    /// A line of HTTP/0.9 has come in whole.
    pub fn line(&self, stream: &Rc<Stream>, line: &[u8]) {
        spend(REQUEST + (line.len() / FIELDS) as u32);
        let limits = &self.server().conf.head_limits;
        let mut scratch = self.event_loop().take_scratch();
        let (parser, buf) = scratch.head();
        buf.extend_from_slice(line);
        let verdict = match parser.parse(buf, limits) {
            Ok(_) if parser.head().version == Version::Http09 => Ok(()),
            Ok(_) => Err(HeadError::InvalidRequest),
            Err(error) => Err(error),
        };
        let verdict = verdict.map_err(ComposeError::Head);
        stream.begin(None);
        let (len, begun) = (line.len() as u64, stream.first_bytes());
        let fields = Fields { scratch, verdict, len, ended: true, begun };
        request::start(stream.clone(), fields);
    }

    /// A request ends before its head could be read. False if nothing of it has come: nothing is logged then.
    pub fn cut(&self, stream: &Rc<Stream>, fault: ComposeError) -> bool {
        if stream.has_begun() || stream.understood() == 0 {
            return false;
        }
        let limits = &self.server().conf.head_limits;
        let mut scratch = self.event_loop().take_scratch();
        let (parser, buf) = scratch.head();
        let mut draft = HeadDraft::new(limits, parser, buf);
        let _ = self.composer.borrow_mut().finish(true, &mut draft);
        stream.begin(None);
        let fields = Fields {
            scratch,
            verdict: Err(fault),
            len: stream.understood(),
            ended: true,
            begun: stream.first_bytes(),
        };
        request::start(stream.clone(), fields);
        true
    }

    /// Trailers have come in whole. Only their form is of interest.
    pub fn trailers(&self, stream: &Rc<Stream>, section: &[u8]) -> Result<bool, StreamError> {
        let limits = &self.server().conf.head_limits;
        let sizes = FieldLimits { field: limits.line, block: limits.total };
        let mut fault = None;
        let decoded = self.decoder.borrow_mut().decode(
            stream.id.into(),
            section,
            sizes,
            |name, _| match name.first() {
                None => fault = Some("a field without a name"),
                Some(b':') => fault = Some("pseudo-header fields"),
                Some(_) => {}
            },
        );
        match decoded {
            Ok(Decoded::Whole) => {}
            Ok(Decoded::Blocked(_)) => return Ok(false),
            Ok(Decoded::TooLarge) => {
                self.acknowledge();
                self.too_large(stream);
                return Ok(true);
            }
            Err(error) => return Err(StreamError::Fields(error)),
        }
        self.acknowledge();
        if let Some(fault) = fault {
            self.log(format_args!("client sent {fault} behind a body"));
            stream.reset(ErrorCode::Message);
        }
        Ok(true)
    }

    /// A section is larger than `large_client_header_buffers` permit.
    pub fn too_large(&self, stream: &Rc<Stream>) {
        if !self.cut(stream, ComposeError::TooLarge) {
            self.log(format_args!("client sent too large header"));
        }
        stream.reset(ErrorCode::ExcessiveLoad);
    }
}
