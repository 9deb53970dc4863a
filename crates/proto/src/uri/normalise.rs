//! From the path as sent to the path that is meant. nginx: ngx_http_parse_complex_uri.

use std::ops::Range;

use super::hex;

/// A path that cannot be decoded or that leads out of the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadUri;

#[derive(Clone, Copy, PartialEq, Eq)]
enum SegmentState {
    Usual,
    Slash,
    Dot,
    DotDot,
}

/// Decodes `%XX`, resolves `.` and `..` segments and, if asked, merges slashes. A decoded `/` or
/// `.` counts as if it had been sent plainly; a decoded `?`, `#` or `%` is an ordinary character.
///
/// `raw` ends at its first plain `?` or `#`. An empty path is `/`. The result replaces what `out`
/// held.
pub fn normalise(raw: &[u8], merge_slashes: bool, out: &mut Vec<u8>) -> Result<(), BadUri> {
    out.clear();
    out.reserve(raw.len() + 1);
    let mut state = SegmentState::Usual;
    let mut rest = raw;
    while let Some((&first, behind)) = rest.split_first() {
        let mut ch = first;
        rest = behind;
        match first {
            b'?' | b'#' => break,
            b'%' => {
                ch = decode(&mut rest)?;
                if matches!(ch, b'?' | b'#' | b'%') {
                    out.push(ch);
                    state = SegmentState::Usual;
                    continue;
                }
            }
            _ => {}
        }
        state = next(state, ch, merge_slashes, out)?;
    }
    match state {
        SegmentState::Dot => drop(out.pop()),
        SegmentState::DotDot => leave_segment(out)?,
        SegmentState::Usual | SegmentState::Slash => {}
    }
    if out.is_empty() {
        out.push(b'/');
    }
    Ok(())
}

#[inline]
fn next(
    state: SegmentState,
    ch: u8,
    merge: bool,
    out: &mut Vec<u8>,
) -> Result<SegmentState, BadUri> {
    match (state, ch) {
        (SegmentState::Slash, b'/') => {
            if !merge {
                out.push(ch);
            }
            return Ok(SegmentState::Slash);
        }
        (SegmentState::Dot, b'/') => {
            out.pop();
            return Ok(SegmentState::Slash);
        }
        (SegmentState::DotDot, b'/') => {
            leave_segment(out)?;
            return Ok(SegmentState::Slash);
        }
        _ => out.push(ch),
    }
    Ok(match (state, ch) {
        (_, b'/') => SegmentState::Slash,
        (SegmentState::Slash, b'.') => SegmentState::Dot,
        (SegmentState::Dot, b'.') => SegmentState::DotDot,
        _ => SegmentState::Usual,
    })
}

/// `out` ends with `/..`: takes this and the segment before it away.
fn leave_segment(out: &mut Vec<u8>) -> Result<(), BadUri> {
    let before = out.len().checked_sub(3).ok_or(BadUri)?;
    let kept = out.get(..before).unwrap_or_default();
    let slash = memchr::memrchr(b'/', kept).ok_or(BadUri)?;
    out.truncate(slash + 1);
    Ok(())
}

/// The byte that two hexadecimal digits stand for. NUL would end paths for the kernel.
fn decode(rest: &mut &[u8]) -> Result<u8, BadUri> {
    let Some((&[high, low], behind)) = rest.split_first_chunk::<2>() else {
        return Err(BadUri);
    };
    *rest = behind;
    match (hex(high), hex(low)) {
        (Some(high), Some(low)) if high | low != 0 => Ok(high << 4 | low),
        _ => Err(BadUri),
    }
}

/// Where the extension of a path's last segment stands, if it has one: what decides its type.
/// A name that begins with its only dot has none. nginx: ngx_http_set_exten.
pub fn extension(path: &[u8]) -> Option<Range<usize>> {
    let at = memchr::memrchr2(b'.', b'/', path)?;
    let dot = path.get(at) == Some(&b'.');
    let begins_segment = at < 2 || path.get(at - 1) == Some(&b'/');
    (dot && !begins_segment).then_some(at + 1..path.len())
}
