//! Streams of the connection itself, in one direction each: settings, GOAWAY and the tables of QPACK.

use bytes::Bytes;
use weir_proto::http3::{ControlPart, ErrorCode, Settings, StreamType, frame};
use weir_quic::{Dir, ReadOutcome, StreamId};

use super::{BLOCKED, Link, TABLE};
use crate::http3::control::{Incoming, Typed};
use crate::http3::stream::{Stream, StreamError};

/// Read of a stream at once.
const READ: usize = 16 * 1024;
/// What may wait for room on one of our own streams.
const MOST_UNSAID: usize = 64 * 1024;

impl Link {
    /// Writes on one of our own streams. What they carry is little, but answers may have filled the connection's window: what
    /// does not fit waits for room.
    pub(super) fn write_own(&self, which: usize, bytes: Vec<u8>) {
        if self.own.get().is_none() {
            return;
        }
        if let Some(unsaid) = self.unsaid.borrow_mut().get_mut(which) {
            unsaid.push(bytes.into());
        }
        self.go_on_own(which);
    }

    /// Writes what waits for room on one of our own streams.
    pub(super) fn go_on_own(&self, which: usize) {
        let Some(id) = self.own.get().and_then(|own| own.get(which).copied()) else { return };
        loop {
            let written = {
                let mut unsaid = self.unsaid.borrow_mut();
                let Some(parts) = unsaid.get_mut(which) else { return };
                parts.retain(|part| !part.is_empty());
                if parts.is_empty() {
                    return;
                }
                let waits: usize = parts.iter().map(Bytes::len).sum();
                self.quic.write(id, parts).map(|written| (written, waits))
            };
            match written {
                Ok((0, waits)) if waits > MOST_UNSAID => {
                    return self.close(ErrorCode::ExcessiveLoad);
                }
                Ok((0, _)) => return,
                Ok(_) => {}
                Err(_) => {
                    let text = "stopped a stream of the connection";
                    return self.wrong(ErrorCode::ClosedCriticalStream, text);
                }
            }
        }
    }

    /// Opens our own streams, and says our settings.
    pub(super) fn greet(&self) {
        if self.own.get().is_some() || self.over.get() {
            return;
        }
        let (Some(control), Some(decoder)) = (self.quic.open(Dir::Uni), self.quic.open(Dir::Uni))
        else {
            return self.wrong(ErrorCode::StreamCreation, "permits no streams of the connection");
        };
        self.own.set(Some([control, decoder]));
        let mut out = Vec::new();
        frame::write_stream_type(StreamType::Control, &mut out);
        let settings = Settings {
            qpack_table: TABLE as u64,
            qpack_blocked: BLOCKED as u64,
            ..Settings::default()
        };
        settings.write(&mut out);
        self.write_own(0, out);
        let mut out = Vec::new();
        frame::write_stream_type(StreamType::QpackDecoder, &mut out);
        self.write_own(1, out);
    }

    /// Sends what our decoder has to say.
    pub(super) fn acknowledge(&self) {
        let mut out = Vec::new();
        self.decoder.borrow_mut().write_feedback(&mut out);
        if !out.is_empty() {
            self.write_own(1, out);
        }
    }

    /// Reads what came on a stream in one direction.
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
                        self.wrong(ErrorCode::ClosedCriticalStream, text);
                    }
                    return;
                }
            };
            self.counts(bytes.len(), 0);
            if let Err(error) = self.understand(id, bytes) {
                return self.broken(&error);
            }
            if self.is_flooded() {
                return;
            }
        }
    }

    pub(super) fn understand(&self, id: StreamId, bytes: Bytes) -> Result<(), StreamError> {
        let mut all = self.incoming.borrow_mut();
        let Some(incoming) = all.get_mut(&id) else { return Ok(()) };
        let mut bytes = bytes;
        if let Incoming::Untyped(number) = incoming {
            match Incoming::read_type(number, bytes) {
                Typed::More => return Ok(()),
                Typed::Is(kind, rest) => {
                    bytes = rest;
                    drop(all);
                    if !self.typed(id, kind) {
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
                        // The client takes no pushes, of which there are none.
                    }
                }
                Ok(())
            }
            Incoming::Encoder => {
                drop(all);
                self.decoder.borrow_mut().read_encoder(&bytes).map_err(StreamError::Fields)?;
                self.acknowledge();
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

    /// A stream in one direction has said what it is. False if it is not wanted.
    pub(super) fn typed(&self, id: StreamId, kind: StreamType) -> bool {
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
            self.wrong(ErrorCode::StreamCreation, text);
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
