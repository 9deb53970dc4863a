//! HTTP/3: variable-length integers, frames and settings (RFC 9114), field compression (RFC 9204).
//!
//! This module knows no streams and no connection. Its caller decides about the effect of a frame.
//! A stream's bytes arrive in chunks of any size. The parsers take all bytes of a chunk and keep
//! their state, so that a caller buffers nothing:
//!
//! - [`varint::PartialVarint`] reads the [`StreamType`] at the start of a unidirectional stream;
//! - [`ControlFrames`] reads the control stream behind its type;
//! - [`RequestFrames`] reads one direction of a request stream;
//! - [`qpack::Decoder`] reads the field sections of all streams, and the peer's encoder stream.

mod control;
mod error;
pub mod frame;
pub mod qpack;
mod request;
mod settings;
pub mod varint;

#[cfg(test)]
pub(crate) mod tests;

pub use control::{ControlFrames, ControlPart};
pub use error::{ErrorCode, FrameError};
pub use frame::{FrameType, StreamType};
pub use request::{RequestFrames, RequestPart, Section};
pub use settings::{Settings, SettingsError};

/// The end of the connection that reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The end that gets requests.
    Server,
    /// The end that makes requests.
    Client,
}
