//! Reads a body into memory, piece by piece, for transports that cannot send files: TLS and HTTP/2.

use std::io;

use weir_engine::{Chain, Handle, Segment};

/// Bytes of a file that are read at once.
const PIECE: usize = 64 * 1024;

/// Takes the next piece of a body; `None` at the end. Data in memory are one piece, up to the next
/// file.
pub async fn next(handle: &Handle, rest: &mut Chain) -> io::Result<Option<Chain>> {
    let mut piece = Chain::new();
    while rest.front().is_some_and(|segment| segment.memory().is_some())
        && let Some(segment) = rest.pop()
    {
        piece.push(segment);
    }
    if !piece.is_empty() {
        return Ok(Some(piece));
    }
    let Some(Segment::File { file, offset, len }) = rest.pop() else { return Ok(None) };
    let room = usize::try_from(len).unwrap_or(PIECE).min(PIECE);
    let (read, mut buf) = handle.files().read_at(&file, handle.take_buf(room), offset).await;
    let read = read?.min(room);
    if read == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    buf.truncate(read);
    piece.push(buf);
    let read = read as u64;
    if read < len {
        rest.push_front(Segment::File { file, offset: offset + read, len: len - read });
    }
    Ok(Some(piece))
}
