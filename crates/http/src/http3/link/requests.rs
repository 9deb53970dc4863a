//! The request streams of a connection, and their field sections.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::PoisonError;
use std::task::Poll;

use weir_engine::{Either, either, spend};
use weir_proto::http1::{ComposeError, HeadDraft, HeadError, HeadLimits, Version};
use weir_proto::http3::ErrorCode;
use weir_proto::http3::qpack::{Decoded, FieldLimits};
use weir_quic::Dir;
use weir_ssl::ocsp::WaitingConnection;
use weir_ssl::server::ClientVerdict;

use super::Link;
use super::end::GoawayState;
use crate::connection::streamed::Fields;
use crate::http3::request;
use crate::http3::stream::{Stream, StreamError};

/// Points of the task's budget per request, without its fields.
const REQUEST: u32 = 32;
/// Bytes of fields per point.
const FIELDS: usize = 4;

impl Link {
    /// Verifies the client's certificate, with OCSP if it is on.
    pub(super) fn check_certificate(&self) {
        let context = {
            let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            found.as_ref().and_then(|secure| secure.shown.context.clone())
        };
        let judged = context
            .as_ref()
            .and_then(|context| self.quic.tls(|tls| context.verify_client(tls)).flatten());
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
                    let fault = context.ask_responders(Some(Ok(path)), waiting).await;
                    link.certificate_checked(fault);
                });
            }
            (_, Some(judged @ Err(_))) => self.certificate_checked(ClientVerdict::err(judged)),
            _ => self.certificate_checked(None),
        }
    }

    pub(super) fn certificate_checked(&self, fault: Option<weir_tls::x509::VerifyError>) {
        {
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(secure) = found.as_mut() {
                secure.shown.fault = fault;
            }
        }
        self.ready.set(true);
        self.accept();
    }

    /// Accepts the request streams that the client has opened.
    pub(super) fn accept(&self) {
        if !self.ready.get() {
            return;
        }
        while let Some(id) = self.quic.accept(Dir::Bi) {
            let Some(link) = self.me.upgrade() else { return };
            // Requests need the `Conn`.
            if self.conn().is_err() {
                self.close(ErrorCode::Internal);
            }
            if self.over.get() {
                return;
            }
            if self.goaway.get() == GoawayState::Final {
                self.quic.stop(id, ErrorCode::RequestRejected as u64);
                self.cancel_in_decoder(id);
                self.quic.reset(id, ErrorCode::RequestRejected as u64);
                continue;
            }
            self.count_request();
            let stream = Stream::new(link, id);
            self.streams.borrow_mut().insert(id, stream.clone());
            stream.read_arrived();
            if !stream.has_begun() && !stream.is_gone() {
                self.limit_head_time(&stream);
            }
        }
    }

    /// Ends the stream if its head is incomplete after `client_header_timeout`. The wait ends with the head or with the stream, so
    /// that streams that were reset leave no timers behind.
    pub(super) fn limit_head_time(&self, stream: &Rc<Stream>) {
        let timeout = self.server().conf.client_header_timeout;
        let sleep = self.event_loop().handle.sleep(timeout);
        let stream = Rc::downgrade(stream);
        self.event_loop().handle.spawn(async move {
            let begun = poll_fn(|cx| match stream.upgrade() {
                Some(stream) => stream.poll_begun(cx),
                None => Poll::Ready(()),
            });
            if let Either::Left(()) = either(begun, sleep).await {
                return;
            }
            if let Some(stream) = stream.upgrade() {
                if !stream.link.start_failed(&stream, ComposeError::TimedOut) {
                    stream.link.log(format_args!("{}", crate::carrier::TIMED_OUT));
                }
                stream.reset(ErrorCode::RequestIncomplete);
            }
        });
    }

    /// Decodes a request's field section and starts the request. False if the section is blocked (RFC 9204, section 2.1.2).
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
            Ok(Decoded::Whole) => {}
            Ok(Decoded::TooLarge) => composer.fail(ComposeError::TooLarge),
            Ok(Decoded::Blocked(_)) => {
                self.event_loop().give_scratch(scratch);
                return Ok(false);
            }
            Err(error) => {
                self.event_loop().give_scratch(scratch);
                return Err(StreamError::Fields(error));
            }
        }
        let len = stream.parsed_bytes();
        let ended = stream.read_end();
        let verdict = composer.finish(ended, &mut draft);
        drop(composer);
        let announced = draft.parser.head().content_length.filter(|_| verdict.is_ok());
        stream.begin(announced);
        self.send_decoder_instructions();
        let begun = stream.first_bytes();
        request::start(stream.clone(), Fields { scratch, verdict, len, ended, begun });
        Ok(true)
    }

    /// The limits of heads of the server with this host name, if there is one.
    fn head_limits_of(&self, host: &[u8]) -> Option<&'static HeadLimits> {
        let (site, conn) = (self.event_loop().site, self.conn().ok()?);
        site.head_limits_of(&conn, host)
    }

    /// Parses a request line of HTTP/0.9 and starts the request.
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

    /// Starts a failed request for a stream without a complete head, so that the access log gets a line. False if no byte of it has
    /// arrived, or its request has begun.
    pub fn start_failed(&self, stream: &Rc<Stream>, fault: ComposeError) -> bool {
        if stream.has_begun() || stream.parsed_bytes() == 0 {
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
            len: stream.parsed_bytes(),
            ended: true,
            begun: stream.first_bytes(),
        };
        request::start(stream.clone(), fields);
        true
    }

    /// Decodes a trailer section, and checks its form only. False if the section is blocked.
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
                self.send_decoder_instructions();
                self.too_large(stream);
                return Ok(true);
            }
            Err(error) => return Err(StreamError::Fields(error)),
        }
        self.send_decoder_instructions();
        if let Some(fault) = fault {
            self.log(format_args!("client sent {fault} behind a body"));
            stream.reset(ErrorCode::Message);
        }
        Ok(true)
    }

    /// Ends a stream whose field section is larger than `large_client_header_buffers` permit.
    pub fn too_large(&self, stream: &Rc<Stream>) {
        if !self.start_failed(stream, ComposeError::TooLarge) {
            self.log(format_args!("client sent too large header"));
        }
        stream.reset(ErrorCode::ExcessiveLoad);
    }
}
