//! Frames of HTTP/2: their headers, some payloads, and how they are written. RFC 9113, sections 4 and 6.

/// The length of a frame header.
pub const HEAD: usize = 9;
/// The default of SETTINGS_MAX_FRAME_SIZE.
pub const MAX_PAYLOAD: usize = 16_384;
/// The largest flow-control window.
pub const MAX_WINDOW: u32 = 0x7fff_ffff;
/// The initial window of a connection, and the default of SETTINGS_INITIAL_WINDOW_SIZE.
pub const DEFAULT_WINDOW: u32 = 65_535;
/// The default of SETTINGS_HEADER_TABLE_SIZE.
pub const DEFAULT_TABLE: u32 = 4096;
/// The client's connection preface.
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The type of a frame: RFC 9113, section 6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameType {
    /// DATA
    Data,
    /// HEADERS
    Headers,
    /// PRIORITY
    Priority,
    /// RST_STREAM
    RstStream,
    /// SETTINGS
    Settings,
    /// PUSH_PROMISE
    PushPromise,
    /// PING
    Ping,
    /// GOAWAY
    Goaway,
    /// WINDOW_UPDATE
    WindowUpdate,
    /// CONTINUATION
    Continuation,
    /// An unknown type. Such frames are ignored.
    Unknown(u8),
}

impl From<u8> for FrameType {
    fn from(byte: u8) -> FrameType {
        match byte {
            0 => FrameType::Data,
            1 => FrameType::Headers,
            2 => FrameType::Priority,
            3 => FrameType::RstStream,
            4 => FrameType::Settings,
            5 => FrameType::PushPromise,
            6 => FrameType::Ping,
            7 => FrameType::Goaway,
            8 => FrameType::WindowUpdate,
            9 => FrameType::Continuation,
            other => FrameType::Unknown(other),
        }
    }
}

impl FrameType {
    /// The number of the type.
    pub fn byte(self) -> u8 {
        match self {
            FrameType::Data => 0,
            FrameType::Headers => 1,
            FrameType::Priority => 2,
            FrameType::RstStream => 3,
            FrameType::Settings => 4,
            FrameType::PushPromise => 5,
            FrameType::Ping => 6,
            FrameType::Goaway => 7,
            FrameType::WindowUpdate => 8,
            FrameType::Continuation => 9,
            FrameType::Unknown(byte) => byte,
        }
    }
}

/// `END_STREAM`
pub const END_STREAM: u8 = 0x1;
/// `ACK` of SETTINGS and PING.
pub const ACK: u8 = 0x1;
/// `END_HEADERS`
pub const END_HEADERS: u8 = 0x4;
/// `PADDED`
pub const PADDED: u8 = 0x8;
/// `PRIORITY` of HEADERS.
pub const PRIORITY: u8 = 0x20;

/// An error code of RST_STREAM or GOAWAY: RFC 9113, section 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorCode {
    /// No error.
    NoError = 0,
    /// The peer has violated the protocol.
    Protocol = 1,
    /// This end has failed.
    Internal = 2,
    /// The peer has exceeded a flow-control window.
    FlowControl = 3,
    /// The peer has not acknowledged SETTINGS in time.
    SettingsTimeout = 4,
    /// A frame for a closed stream.
    StreamClosed = 5,
    /// A frame of a wrong size.
    FrameSize = 6,
    /// The request was not processed, and may be repeated.
    RefusedStream = 7,
    /// The stream is not needed any more.
    Cancel = 8,
    /// The compression state of the connection is lost.
    Compression = 9,
    /// The peer causes too much load.
    EnhanceYourCalm = 11,
}

/// A frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    /// The length of the payload.
    pub len: usize,
    /// The type.
    pub kind: FrameType,
    /// The flags, whose meaning depends on the type.
    pub flags: u8,
    /// The stream ID; 0 for the connection.
    pub stream: u32,
}

impl FrameHead {
    /// Reads a header, if it is complete.
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<FrameHead> {
        let &[a, b, c, kind, flags, d, e, f, g] = bytes.first_chunk::<HEAD>()?;
        Some(FrameHead {
            len: usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c),
            kind: kind.into(),
            flags,
            stream: u32::from_be_bytes([d & 0x7f, e, f, g]),
        })
    }

    /// Appends the header.
    #[inline]
    pub fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes());
    }

    fn bytes(self) -> [u8; HEAD] {
        let [_, a, b, c] = (self.len as u32).to_be_bytes();
        let [d, e, f, g] = self.stream.to_be_bytes();
        [a, b, c, self.kind.byte(), self.flags, d, e, f, g]
    }

    /// Whether a flag is set.
    #[inline]
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// A fault of a frame's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeError {
    /// The payload is too short for its fields.
    Short,
    /// The padding, of this length, is longer than the payload.
    Padding(usize),
}

/// The payload of DATA or HEADERS without its padding.
pub fn unpadded(flags: u8, payload: &[u8]) -> Result<&[u8], SizeError> {
    if flags & PADDED == 0 {
        return Ok(payload);
    }
    let (&padding, rest) = payload.split_first().ok_or(SizeError::Short)?;
    let padding = usize::from(padding);
    let len = rest.len().checked_sub(padding).ok_or(SizeError::Padding(padding))?;
    Ok(rest.get(..len).unwrap_or_default())
}

/// Reads the stream dependency and the weight. Returns the dependency, and the rest. RFC 7540, section 5.3 (obsolete).
pub fn dependency(payload: &[u8]) -> Result<(u32, &[u8]), SizeError> {
    let (first, rest) = payload.split_first_chunk::<5>().ok_or(SizeError::Short)?;
    let &[a, b, c, d, _weight] = first;
    Ok((u32::from_be_bytes([a & 0x7f, b, c, d]), rest))
}

/// A setting: RFC 9113, section 6.5.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// SETTINGS_HEADER_TABLE_SIZE
    HeaderTableSize(u32),
    /// SETTINGS_ENABLE_PUSH
    EnablePush(u32),
    /// SETTINGS_MAX_CONCURRENT_STREAMS
    MaxConcurrentStreams(u32),
    /// SETTINGS_INITIAL_WINDOW_SIZE
    InitialWindowSize(u32),
    /// SETTINGS_MAX_FRAME_SIZE
    MaxFrameSize(u32),
    /// Another setting.
    Other,
}

/// The settings in the payload of a SETTINGS frame.
pub fn settings(payload: &[u8]) -> impl Iterator<Item = Setting> {
    payload.as_chunks::<6>().0.iter().map(|&[a, b, c, d, e, f]| {
        let value = u32::from_be_bytes([c, d, e, f]);
        match u16::from_be_bytes([a, b]) {
            1 => Setting::HeaderTableSize(value),
            2 => Setting::EnablePush(value),
            3 => Setting::MaxConcurrentStreams(value),
            4 => Setting::InitialWindowSize(value),
            5 => Setting::MaxFrameSize(value),
            _ => Setting::Other,
        }
    })
}

/// The payload of RST_STREAM or WINDOW_UPDATE: a number of four bytes.
pub fn word(payload: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(payload.try_into().ok()?))
}

/// Appends SETTINGS.
pub fn write_settings(settings: &[Setting], out: &mut Vec<u8>) {
    FrameHead { len: settings.len() * 6, kind: FrameType::Settings, flags: 0, stream: 0 }
        .write(out);
    for setting in settings {
        let (id, value) = match *setting {
            Setting::HeaderTableSize(value) => (1u16, value),
            Setting::EnablePush(value) => (2, value),
            Setting::MaxConcurrentStreams(value) => (3, value),
            Setting::InitialWindowSize(value) => (4, value),
            Setting::MaxFrameSize(value) => (5, value),
            Setting::Other => (0, 0),
        };
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends the acknowledgement of SETTINGS.
pub fn write_settings_ack(out: &mut Vec<u8>) {
    FrameHead { len: 0, kind: FrameType::Settings, flags: ACK, stream: 0 }.write(out);
}

/// Appends the answer to a PING.
pub fn write_pong(payload: &[u8], out: &mut Vec<u8>) {
    FrameHead { len: payload.len(), kind: FrameType::Ping, flags: ACK, stream: 0 }.write(out);
    out.extend_from_slice(payload);
}

/// Appends WINDOW_UPDATE; `stream` is 0 for the connection's window.
pub fn write_window_update(stream: u32, by: u32, out: &mut Vec<u8>) {
    FrameHead { len: 4, kind: FrameType::WindowUpdate, flags: 0, stream }.write(out);
    out.extend_from_slice(&by.to_be_bytes());
}

/// Appends RST_STREAM.
pub fn write_reset(stream: u32, code: ErrorCode, out: &mut Vec<u8>) {
    FrameHead { len: 4, kind: FrameType::RstStream, flags: 0, stream }.write(out);
    out.extend_from_slice(&(code as u32).to_be_bytes());
}

/// Appends GOAWAY.
pub fn write_goaway(last: u32, code: ErrorCode, out: &mut Vec<u8>) {
    FrameHead { len: 8, kind: FrameType::Goaway, flags: 0, stream: 0 }.write(out);
    out.extend_from_slice(&last.to_be_bytes());
    out.extend_from_slice(&(code as u32).to_be_bytes());
}

/// Completes a HEADERS frame at the end of `out`. A field block longer than `most` is continued in CONTINUATION frames. `begin` is
/// the result of [`leave_head`]; the field block stands behind it.
pub fn finish_headers(out: &mut Vec<u8>, begin: usize, stream: u32, flags: u8, most: usize) {
    let start = begin + HEAD;
    let len = out.len().saturating_sub(start);
    if len <= most {
        put_head(
            out,
            begin,
            FrameHead { len, kind: FrameType::Headers, flags: flags | END_HEADERS, stream },
        );
        return;
    }
    let rest = out.split_off(start + most);
    put_head(out, begin, FrameHead { len: most, kind: FrameType::Headers, flags, stream });
    let mut pieces = rest.chunks(most).peekable();
    while let Some(piece) = pieces.next() {
        let flags = if pieces.peek().is_none() { END_HEADERS } else { 0 };
        FrameHead { len: piece.len(), kind: FrameType::Continuation, flags, stream }.write(out);
        out.extend_from_slice(piece);
    }
}

/// Reserves space for a frame header, and returns its offset.
pub fn leave_head(out: &mut Vec<u8>) -> usize {
    out.extend_from_slice(&[0; HEAD]);
    out.len() - HEAD
}

/// Writes a header into its reserved space.
pub fn put_head(out: &mut [u8], at: usize, head: FrameHead) {
    if let Some(room) = out.get_mut(at..at + HEAD) {
        room.copy_from_slice(&head.bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn padding_is_taken_off() {
        assert_eq!(unpadded(0, b"abc"), Ok(&b"abc"[..]));
        assert_eq!(unpadded(PADDED, b"\x01ab"), Ok(&b"a"[..]));
        assert_eq!(unpadded(PADDED, b"\x02ab"), Ok(&b""[..]));
        assert_eq!(unpadded(PADDED, b"\x03ab"), Err(SizeError::Padding(3)));
        assert_eq!(unpadded(PADDED, b""), Err(SizeError::Short));
    }

    #[test]
    fn settings_come_back() {
        let all = [Setting::MaxConcurrentStreams(128), Setting::InitialWindowSize(65_536)];
        let mut out = Vec::new();
        write_settings(&all, &mut out);
        assert_eq!(settings(&out[HEAD..]).collect::<Vec<_>>(), all);
    }

    proptest! {
        #[test]
        fn heads_come_back(len in 0usize..1 << 24, kind: u8, flags: u8, stream in 0u32..1 << 31) {
            let head = FrameHead { len, kind: kind.into(), flags, stream };
            let mut out = Vec::new();
            head.write(&mut out);
            prop_assert_eq!(FrameHead::read(&out), Some(head));
            prop_assert_eq!(FrameHead::read(&out[..8]), None);
        }

        #[test]
        fn a_long_block_is_continued(len in 0usize..100, most in 1usize..40) {
            let block: Vec<u8> = (0..len as u8).collect();
            let mut out = b"before".to_vec();
            let at = leave_head(&mut out);
            out.extend_from_slice(&block);
            finish_headers(&mut out, at, 5, END_STREAM, most);
            let (mut rest, mut read, mut ended) = (&out[6..], Vec::new(), false);
            while let Some(head) = FrameHead::read(rest) {
                prop_assert!(!ended && head.len <= most && head.stream == 5);
                prop_assert_eq!(head.kind == FrameType::Headers, read.is_empty());
                read.extend_from_slice(&rest[HEAD..HEAD + head.len]);
                ended = head.has(END_HEADERS);
                rest = &rest[HEAD + head.len..];
            }
            prop_assert!(ended && rest.is_empty());
            prop_assert_eq!(read, block);
        }
    }
}
