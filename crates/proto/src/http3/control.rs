//! The control stream, behind its type: RFC 9114, section 6.2.1.

use super::Role;
use super::error::FrameError;
use super::frame::{FrameHead, FrameType, PartialHead};
use super::settings::Settings;
use super::varint;

/// The largest accepted SETTINGS frame. A setting takes 16 bytes at most.
const LONGEST_SETTINGS: u64 = 4096;

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlPart {
    /// All bytes were read. They complete no frame of interest.
    Nothing,
    /// The peer's settings: the first frame of the stream, and only there.
    Settings(Settings),
    /// GOAWAY. A server processes no request stream from this ID on, and a client accepts no push from this ID on.
    Goaway(u64),
}

/// Parses the frames of the peer's control stream. This end neither pushes nor allows pushes, so
/// frames about pushes are checked and then ignored.
#[derive(Debug)]
pub struct ControlFrames {
    role: Role,
    has_settings: bool,
    head: PartialHead,
    /// The frame whose payload is incomplete, and the length of the missing part.
    frame: Option<(FrameHead, u64)>,
    /// The payload so far of a frame of a known type.
    payload: Vec<u8>,
    goaway: Option<u64>,
    push_limit: Option<u64>,
}

impl ControlFrames {
    /// A parser at the start of the stream, behind its type. `role` is this end's.
    pub fn new(role: Role) -> ControlFrames {
        ControlFrames {
            role,
            has_settings: false,
            head: PartialHead::default(),
            frame: None,
            payload: Vec::new(),
            goaway: None,
            push_limit: None,
        }
    }

    /// Reads up to the end of the next frame of interest. Returns the number of bytes. An error is a
    /// connection error.
    pub fn read(&mut self, input: &[u8]) -> Result<(usize, ControlPart), FrameError> {
        let mut rest = input;
        loop {
            let (head, left) = match self.frame {
                Some(frame) => frame,
                None => {
                    let Some(head) = self.head.read(&mut rest) else {
                        return Ok((input.len(), ControlPart::Nothing));
                    };
                    self.check(head)?;
                    (head, head.len)
                }
            };
            let piece = rest.get(..usize::try_from(left).unwrap_or(usize::MAX)).unwrap_or(rest);
            rest = rest.get(piece.len()..).unwrap_or_default();
            let left = left - piece.len() as u64;
            let kept = !matches!(head.kind, FrameType::Unknown(_));
            self.frame = Some((head, left)).filter(|_| left > 0);
            if kept && (left > 0 || !self.payload.is_empty()) {
                self.payload.extend_from_slice(piece);
            }
            if left > 0 {
                return Ok((input.len(), ControlPart::Nothing));
            }
            let gathered = std::mem::take(&mut self.payload);
            let payload = if gathered.is_empty() { piece } else { &gathered };
            match self.whole(head, payload)? {
                ControlPart::Nothing => {}
                part => return Ok((input.len() - rest.len(), part)),
            }
        }
    }

    /// Checks that a frame may begin here.
    fn check(&mut self, head: FrameHead) -> Result<(), FrameError> {
        let FrameHead { kind, len } = head;
        if !self.has_settings {
            return match kind {
                FrameType::Settings if len > LONGEST_SETTINGS => {
                    Err(FrameError::LargeSettings(len))
                }
                FrameType::Settings => Ok(()),
                _ => Err(FrameError::MissingSettings(kind)),
            };
        }
        match kind {
            FrameType::Unknown(_) => Ok(()),
            FrameType::MaxPushId if self.role == Role::Client => Err(FrameError::Unexpected(kind)),
            FrameType::CancelPush | FrameType::Goaway | FrameType::MaxPushId => {
                if (1..=8).contains(&len) { Ok(()) } else { Err(FrameError::Length(kind, len)) }
            }
            FrameType::Data
            | FrameType::Headers
            | FrameType::Settings
            | FrameType::PushPromise
            | FrameType::Http2(_) => Err(FrameError::Unexpected(kind)),
        }
    }

    fn whole(&mut self, head: FrameHead, payload: &[u8]) -> Result<ControlPart, FrameError> {
        match head.kind {
            FrameType::Settings => {
                let settings = Settings::parse(payload).map_err(FrameError::Settings)?;
                self.has_settings = true;
                return Ok(ControlPart::Settings(settings));
            }
            FrameType::Goaway => return self.goaway(id(head, payload)?),
            FrameType::MaxPushId => {
                let id = id(head, payload)?;
                if self.push_limit.replace(id).is_some_and(|before| id < before) {
                    return Err(FrameError::LowerPushLimit(id));
                }
            }
            FrameType::CancelPush => {
                id(head, payload)?;
                return Err(FrameError::UnknownPush(head.kind));
            }
            _ => {}
        }
        Ok(ControlPart::Nothing)
    }

    fn goaway(&mut self, id: u64) -> Result<ControlPart, FrameError> {
        // A request stream is bidirectional and opened by the client: its two low bits are 0.
        if self.role == Role::Client && !id.is_multiple_of(4) {
            return Err(FrameError::GoawayStream(id));
        }
        if self.goaway.replace(id).is_some_and(|before| id > before) {
            return Err(FrameError::HigherGoaway(id));
        }
        Ok(ControlPart::Goaway(id))
    }
}

/// A payload of a single variable-length integer.
fn id(head: FrameHead, mut payload: &[u8]) -> Result<u64, FrameError> {
    match varint::take(&mut payload) {
        Some(id) if payload.is_empty() => Ok(id),
        _ => Err(FrameError::Length(head.kind, head.len)),
    }
}
