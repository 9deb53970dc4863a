//! The unidirectional streams of a connection: the control streams and those of QPACK.

use bytes::Bytes;
use weir_proto::http3::{ControlPart, ErrorCode, Settings, StreamType, frame};
use weir_quic::{Dir, ReadOutcome, StreamId};

use super::{BLOCKED, Link, TABLE};
use crate::http3::control::{Incoming, Typed};
use crate::http3::stream::{Stream, StreamError};

/// Bytes of a stream per read.
const READ: usize = 16 * 1024;
/// The most bytes that wait for one of the server's own streams.
const MOST_UNSENT: usize = 64 * 1024;

impl Link {
    /// Writes on one of the server's own streams. Bytes that QUIC does not accept wait: answers may have used up the connection's
    /// flow-control window, and requests of 0-RTT come before the streams are open.
    pub(super) fn write_own(&self, which: usize, bytes: Vec<u8>) {
        if self.hq.get() {
            return;
        }
        if let Some(unsent) = self.unsent.borrow_mut().get_mut(which) {
            unsent.push(bytes.into());
        }
        self.flush_own(which);
    }

    /// Writes the waiting bytes of one of the server's own streams.
    pub(super) fn flush_own(&self, which: usize) {
        let Some(id) = self.own.get().and_then(|own| own.get(which).copied()) else { return };
        loop {
            let written = {
                let mut unsent = self.unsent.borrow_mut();
                let Some(parts) = unsent.get_mut(which) else { return };
                parts.retain(|part| !part.is_empty());
                if parts.is_empty() {
                    return;
                }
                let waits: usize = parts.iter().map(Bytes::len).sum();
                self.quic.write(id, parts).map(|written| (written, waits))
            };
            match written {
                Ok((0, waits)) if waits > MOST_UNSENT => {
                    return self.close(ErrorCode::ExcessiveLoad);
                }
                Ok((0, _)) => return,
                Ok(_) => {}
                Err(_) => {
                    let text = "stopped a stream of the connection";
                    return self.close_for(ErrorCode::ClosedCriticalStream, text);
                }
            }
        }
    }

    /// Opens the server's own streams, and sends SETTINGS.
    pub(super) fn open_own_streams(&self) {
        if self.own.get().is_some() || self.over.get() {
            return;
        }
        let (Some(control), Some(decoder)) = (self.quic.open(Dir::Uni), self.quic.open(Dir::Uni))
        else {
            return self
                .close_for(ErrorCode::StreamCreation, "permits no streams of the connection");
        };
        self.own.set(Some([control, decoder]));
        let settings = Settings {
            qpack_table: TABLE as u64,
            qpack_blocked: BLOCKED as u64,
            ..Settings::default()
        };
        let kinds = [StreamType::Control, StreamType::QpackDecoder];
        for (which, kind) in kinds.into_iter().enumerate() {
            let mut first = Vec::new();
            frame::write_stream_type(kind, &mut first);
            if kind == StreamType::Control {
                settings.write(&mut first);
            }
            if let Some(unsent) = self.unsent.borrow_mut().get_mut(which) {
                unsent.insert(0, first.into());
            }
            self.flush_own(which);
        }
    }

    /// Sends the QPACK decoder's instructions.
    pub(super) fn send_decoder_instructions(&self) {
        let mut out = Vec::new();
        self.decoder.borrow_mut().write_feedback(&mut out);
        if !out.is_empty() {
            self.write_own(1, out);
        }
    }

    /// Reads one of the client's unidirectional streams.
    pub(super) fn read_incoming(&self, id: StreamId) {
        loop {
            if self.over.get() {
                return;
            }
            let bytes = match self.quic.read(id, READ) {
                ReadOutcome::Bytes(bytes) => bytes,
                ReadOutcome::Wait => return,
                ReadOutcome::End | ReadOutcome::Reset(_) | ReadOutcome::Gone => {
                    let ended = self.incoming.borrow_mut().remove(&id);
                    if matches!(
                        ended,
                        Some(Incoming::Control(_) | Incoming::Encoder | Incoming::Decoder(_))
                    ) {
                        let text = "closed a stream of the connection";
                        self.close_for(ErrorCode::ClosedCriticalStream, text);
                    }
                    return;
                }
            };
            self.count_received(bytes.len(), 0);
            if let Err(error) = self.process_incoming(id, bytes) {
                return self.connection_error(&error);
            }
            if self.is_flooded() {
                return;
            }
        }
    }

    pub(super) fn process_incoming(&self, id: StreamId, bytes: Bytes) -> Result<(), StreamError> {
        let mut all = self.incoming.borrow_mut();
        let Some(incoming) = all.get_mut(&id) else { return Ok(()) };
        let mut bytes = bytes;
        if let Incoming::Untyped(number) = incoming {
            match Incoming::read_type(number, bytes) {
                Typed::More => return Ok(()),
                Typed::Is(kind, rest) => {
                    bytes = rest;
                    drop(all);
                    if !self.set_type(id, kind) {
                        return Ok(());
                    }
                    all = self.incoming.borrow_mut();
                }
            }
        }
        let Some(incoming) = all.get_mut(&id) else { return Ok(()) };
        match incoming {
            Incoming::Control(frames) => {
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let (taken, part) = frames.read(rest).map_err(StreamError::Frame)?;
                    rest = rest.get(taken..).unwrap_or_default();
                    if let ControlPart::Goaway(_) = part {
                        // A client's GOAWAY limits server pushes, and weir sends none.
                    }
                }
                Ok(())
            }
            Incoming::Encoder => {
                drop(all);
                self.decoder.borrow_mut().read_encoder(&bytes).map_err(StreamError::Fields)?;
                self.send_decoder_instructions();
                loop {
                    let next = self.decoder.borrow_mut().next_unblocked();
                    let Some(next) = next else { return Ok(()) };
                    let streams = self.streams.borrow();
                    let stream = streams.values().find(|stream| u64::from(stream.id) == next);
                    let stream = stream.cloned();
                    drop(streams);
                    stream.iter().for_each(Stream::unblock);
                }
            }
            Incoming::Decoder(feedback) => feedback.read(&bytes).map_err(StreamError::Fields),
            Incoming::Other | Incoming::Untyped(_) => Ok(()),
        }
    }

    /// Sets the type of a unidirectional stream. False if the stream is stopped or an error.
    pub(super) fn set_type(&self, id: StreamId, kind: StreamType) -> bool {
        let new = Incoming::of(kind);
        let twice = match &new {
            Incoming::Other | Incoming::Untyped(_) => false,
            new => {
                let same =
                    |old: &Incoming| std::mem::discriminant(old) == std::mem::discriminant(new);
                self.incoming.borrow().values().any(same)
            }
        };
        if twice || kind == StreamType::Push {
            let text =
                if twice { "opened a stream of the connection twice" } else { "sent a push" };
            self.close_for(ErrorCode::StreamCreation, text);
            return false;
        }
        let wanted = !matches!(new, Incoming::Other);
        if !wanted {
            self.quic.stop(id, ErrorCode::StreamCreation as u64);
        }
        self.incoming.borrow_mut().insert(id, new);
        wanted
    }
}
