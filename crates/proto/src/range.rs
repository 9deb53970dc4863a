//! The `Range` header. nginx: ngx_http_range_parse.

/// A half-open range of bytes of a response, never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub start: u64,
    /// Offset behind the last byte.
    pub end: u64,
}

/// What to do with a `Range` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranges {
    /// Answer with the ranges found: 206.
    Partial,
    /// None of them lies in the response, or the header cannot be read: 416.
    NotSatisfiable,
    /// Answer with the whole: not a range of bytes, too many ranges, or more than the whole.
    Whole,
}

/// Bytes that each part of a multipart answer costs in headers, and how many the whole may have:
/// nginx's estimate when `max_ranges` does not bound the number.
const PART_COST: u64 = 256;
const PARTS_ALLOWANCE: u64 = 4096;

/// Reads the value of a `Range` header against a response of `length` bytes. `max_ranges` is
/// nginx's directive, `None` if it was not set. The ranges found replace what `out` held; they
/// are in the order sent and may overlap.
pub fn parse(
    value: &[u8],
    length: u64,
    max_ranges: Option<usize>,
    out: &mut Vec<ByteRange>,
) -> Ranges {
    out.clear();
    let unit = value.get(..6).unwrap_or_default();
    if value.len() < 7 || !unit.eq_ignore_ascii_case(b"bytes=") || max_ranges == Some(0) {
        return Ranges::Whole;
    }
    let mut rest = value.get(6..).unwrap_or_default();
    let mut size: u64 = 0;
    loop {
        let Some((start, end)) = one(&mut rest, length) else {
            return Ranges::NotSatisfiable;
        };
        if start < end {
            if max_ranges.is_some_and(|max| out.len() >= max) {
                return Ranges::Whole;
            }
            out.push(ByteRange { start, end });
            size = match size.checked_add(end - start) {
                Some(size) if i64::try_from(size).is_ok() => size,
                _ => return Ranges::NotSatisfiable,
            };
        } else if start == 0 {
            return Ranges::Whole;
        }
        match rest.split_first() {
            Some((b',', behind)) => rest = behind,
            _ => break,
        }
    }
    match out.len() {
        0 => Ranges::NotSatisfiable,
        1 => Ranges::Partial,
        _ if size > length => Ranges::Whole,
        n if max_ranges.is_none()
            && size.saturating_add(n as u64 * PART_COST)
                > length.saturating_add(PARTS_ALLOWANCE) =>
        {
            Ranges::Whole
        }
        _ => Ranges::Partial,
    }
}

/// One range, up to the comma or the end; `None` if it cannot be read.
fn one(rest: &mut &[u8], length: u64) -> Option<(u64, u64)> {
    skip_spaces(rest);
    let start = match rest.first()? {
        b'-' => None,
        _ => Some(number(rest)?),
    };
    skip_spaces(rest);
    let (b'-', behind) = rest.split_first()? else { return None };
    *rest = behind;
    if let Some(start) = start {
        skip_spaces(rest);
        if matches!(rest.first(), None | Some(b',')) {
            return Some((start, length));
        }
    }
    let number = number(rest)?;
    skip_spaces(rest);
    if !matches!(rest.first(), None | Some(b',')) {
        return None;
    }
    Some(match start {
        Some(start) => (start, number.saturating_add(1).min(length)),
        // the last bytes; with none asked for, an empty range behind the end
        None => (length.saturating_sub(number), length),
    })
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    let len = rest.iter().take_while(|ch| ch.is_ascii_digit()).count();
    let (digits, behind) = rest.split_at_checked(len)?;
    *rest = behind;
    crate::http1::offset(digits)
}

fn skip_spaces(rest: &mut &[u8]) {
    let spaces = rest.iter().take_while(|&&ch| ch == b' ').count();
    *rest = rest.get(spaces..).unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(value: &str, length: u64, max: Option<usize>) -> (Ranges, Vec<(u64, u64)>) {
        let mut out = Vec::new();
        let ranges = parse(value.as_bytes(), length, max, &mut out);
        (ranges, out.iter().map(|r| (r.start, r.end)).collect())
    }

    #[test]
    fn one_range() {
        assert_eq!(ranges("bytes=0-8", 1000, None), (Ranges::Partial, vec![(0, 9)]));
        assert_eq!(ranges("BYTES=990-", 1000, None), (Ranges::Partial, vec![(990, 1000)]));
        assert_eq!(ranges("bytes=-8", 1000, None), (Ranges::Partial, vec![(992, 1000)]));
        assert_eq!(ranges("bytes=-2000", 1000, None), (Ranges::Partial, vec![(0, 1000)]));
        assert_eq!(ranges("bytes= 1 - 2 ", 1000, None), (Ranges::Partial, vec![(1, 3)]));
        assert_eq!(ranges("bytes=999-5000", 1000, None), (Ranges::Partial, vec![(999, 1000)]));
    }

    #[test]
    fn what_lies_outside_or_cannot_be_read_is_not_satisfiable() {
        for value in [
            "bytes=1000-",
            "bytes=1000-1001",
            "bytes=x",
            "bytes=1",
            "bytes=-",
            "bytes=1-2x",
            "bytes=- 1",
            "bytes=9223372036854775808-",
            "bytes=1-2,",
        ] {
            assert_eq!(ranges(value, 1000, None).0, Ranges::NotSatisfiable, "{value}");
        }
    }

    #[test]
    fn what_is_no_byte_range_is_left_alone() {
        assert_eq!(ranges("bytes=", 1000, None).0, Ranges::Whole);
        assert_eq!(ranges("lines=1-2", 1000, None).0, Ranges::Whole);
        assert_eq!(ranges("bytes=0-1", 0, None).0, Ranges::Whole);
        assert_eq!(ranges("bytes=-5", 0, None).0, Ranges::Whole);
        assert_eq!(ranges("bytes=0-1", 1000, Some(0)).0, Ranges::Whole);
    }

    #[test]
    fn many_ranges_are_bounded() {
        let two = (Ranges::Partial, vec![(0, 1), (5, 7)]);
        assert_eq!(ranges("bytes=0-0, 5-6", 1000, None), two);
        assert_eq!(ranges("bytes=0-0,5-6", 1000, Some(2)), two);
        assert_eq!(ranges("bytes=0-0,5-6", 1000, Some(1)).0, Ranges::Whole);
        assert_eq!(ranges("bytes=0-,0-", 1000, None).0, Ranges::Whole);
        assert_eq!(ranges("bytes=2000-,0-1", 1000, None), (Ranges::Partial, vec![(0, 2)]));
        let tiny = format!("bytes={}", vec!["0-0"; 20].join(","));
        assert_eq!(ranges(&tiny, 1000, None).0, Ranges::Whole);
        assert_eq!(ranges(&tiny, 1000, Some(20)).0, Ranges::Partial);
    }

    proptest::proptest! {
        #[test]
        fn ranges_lie_inside(value in "bytes=[-0-9 ,]{0,40}", length in 0u64..100, max: Option<u8>) {
            let mut out = Vec::new();
            parse(value.as_bytes(), length, max.map(usize::from), &mut out);
            for range in out {
                proptest::prop_assert!(range.start < range.end && range.end <= length);
            }
        }

        #[test]
        fn any_value_is_decided(value: Vec<u8>, length: u64) {
            parse(&value, length, None, &mut Vec::new());
        }
    }
}
