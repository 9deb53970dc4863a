//! A body that is being read whole.

/// The part that was read, and where the body is kept.
pub(super) struct Gathering {
    /// The body in memory. If it has a file, the part that was not written yet.
    pub(super) bytes: Vec<u8>,
    /// `client_body_buffer_size`
    pub(super) room: usize,
    /// Whether a body of any length stays in memory.
    pub(super) in_memory: bool,
    /// Whether a body of any length is written to a file.
    pub(super) in_file: bool,
    /// Whether all received bytes are in the buffer of the head.
    pub(super) in_head_buffer: bool,
}
