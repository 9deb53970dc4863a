//! A table of ranges of IPv4 addresses. A later range may lie inside an earlier one.
//!
//! It is kept in blocks of 65536 addresses, so that overlaps have the same effect as in nginx.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;

use weir_conf::{Directive as Line, Error, Word};

use super::GeoValue;
use crate::cidr;

/// Values by range.
#[derive(Debug, Default)]
pub struct Ranges {
    blocks: HashMap<u16, Vec<Range>>,
    default: Option<GeoValue>,
}

/// A range within a block.
#[derive(Debug, Clone)]
struct Range {
    start: u16,
    end: u16,
    value: GeoValue,
}

/// The result of adding a range.
#[derive(Debug, PartialEq, Eq)]
enum Added {
    Fresh,
    /// The same range was there, with this value.
    Instead(GeoValue),
    /// The range overlaps this one.
    Overlaps(u16, u16),
}

impl Ranges {
    /// The value for an address. A subject without an IPv4 address counts as the broadcast address.
    pub fn find(&self, ip: Option<IpAddr>) -> Option<&[u8]> {
        let bits = match ip {
            Some(IpAddr::V4(ip)) => ip.to_bits(),
            _ => u32::MAX,
        };
        let (block, low) = ((bits >> 16) as u16, bits as u16);
        let ranges = self.blocks.get(&block);
        let hit = ranges.and_then(|r| r.iter().find(|r| (r.start..=r.end).contains(&low)));
        hit.map(|range| &range.value).or(self.default.as_ref()).map(|v| &**v)
    }

    /// `default value`, `first-last value`, `delete first-last`
    pub fn line(
        &mut self,
        warnings: &mut Vec<Error>,
        line: &Line,
        value: &Word,
    ) -> Result<(), Error> {
        if line.name.is("default") {
            if let Some(old) = self.default.replace(value.bytes.as_slice().into()) {
                let text = format!(
                    "duplicate default geo range value: \"{}\", old value: \"{}\"",
                    value.lossy(),
                    String::from_utf8_lossy(&old)
                );
                warnings.push(line.warning(text));
            }
            return Ok(());
        }
        let word = if line.name.is("delete") { value } else { &line.name };
        let range = parse(&word.bytes).ok_or_else(|| line.invalid("range", word))?;
        if line.name.is("delete") {
            if !self.delete(&range) {
                let text = format!("no address range \"{}\" to delete", word.lossy());
                warnings.push(line.warning(text));
            }
            return Ok(());
        }
        let new: GeoValue = value.bytes.as_slice().into();
        for (block, start, end) in pieces(&range) {
            let ranges = self.blocks.entry(block).or_default();
            match add(ranges, Range { start, end, value: new.clone() }) {
                Added::Fresh => {}
                Added::Instead(old) => {
                    let text = format!(
                        "duplicate range \"{}\", value: \"{}\", old value: \"{}\"",
                        word.lossy(),
                        value.lossy(),
                        String::from_utf8_lossy(&old)
                    );
                    warnings.push(line.warning(text));
                }
                Added::Overlaps(start, end) => {
                    let ip = |low| Ipv4Addr::from_bits(u32::from(block) << 16 | u32::from(low));
                    let (word, start, end) = (word.lossy(), ip(start), ip(end));
                    return Err(line.error(format!("range \"{word}\" overlaps \"{start}-{end}\"")));
                }
            }
        }
        Ok(())
    }

    /// False if a part of the range was not there.
    fn delete(&mut self, range: &RangeInclusive<u32>) -> bool {
        let mut all = true;
        for (block, start, end) in pieces(range) {
            let ranges = self.blocks.entry(block).or_default();
            let before = ranges.len();
            ranges.retain(|r| (r.start, r.end) != (start, end));
            all &= ranges.len() < before;
        }
        all
    }
}

fn parse(text: &[u8]) -> Option<RangeInclusive<u32>> {
    let at = memchr::memchr(b'-', text)?;
    // As in nginx, no range ends with the broadcast address, which stands for no address.
    let ip = |text: &[u8]| match cidr::parse_ip(text)? {
        IpAddr::V4(ip) => Some(ip.to_bits()).filter(|bits| *bits < u32::MAX),
        IpAddr::V6(_) => None,
    };
    let range = ip(text.get(..at)?)?..=ip(text.get(at + 1..)?)?;
    (!range.is_empty()).then_some(range)
}

/// The parts of a range in each block.
fn pieces(range: &RangeInclusive<u32>) -> impl Iterator<Item = (u16, u16, u16)> + use<> {
    let (start, end) = (*range.start(), *range.end());
    (start >> 16..=end >> 16).map(move |block| {
        let from = if block == start >> 16 { start as u16 } else { 0 };
        let to = if block == end >> 16 { end as u16 } else { u16::MAX };
        (block as u16, from, to)
    })
}

/// Adds a range. The ranges are kept in order.
fn add(ranges: &mut Vec<Range>, new: Range) -> Added {
    let meets = |r: &Range| r.start <= new.end && new.start <= r.end;
    let Some(at) = ranges.iter().rposition(meets) else {
        let at = ranges.partition_point(|r| r.end < new.start);
        ranges.insert(at, new);
        return Added::Fresh;
    };
    let old = ranges[at].clone();
    if (old.start, old.end) == (new.start, new.end) {
        ranges[at].value = new.value;
        return Added::Instead(old.value);
    }
    if new.start < old.start || new.end > old.end {
        return Added::Overlaps(old.start, old.end);
    }
    let mut parts = Vec::with_capacity(3);
    if new.start > old.start {
        parts.push(Range { end: new.start - 1, ..old.clone() });
    }
    let behind = (new.end < old.end).then(|| Range { start: new.end + 1, ..old });
    parts.push(new);
    parts.extend(behind);
    ranges.splice(at..=at, parts);
    Added::Fresh
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_range_inside_another_splits_it(a: u16, b: u16, c: u16, d: u16) {
            let mut points = [a, b, c, d];
            points.sort_unstable();
            let [start, from, to, end] = points;
            let range = |start, end, value: &[u8]| Range { start, end, value: value.into() };
            let mut ranges = Vec::new();
            add(&mut ranges, range(start, end, b"outer"));
            add(&mut ranges, range(from, to, b"inner"));
            for point in start..=end {
                let hit: Vec<_> =
                    ranges.iter().filter(|r| (r.start..=r.end).contains(&point)).collect();
                prop_assert_eq!(hit.len(), 1);
                let inner = (from..=to).contains(&point);
                prop_assert_eq!(&*hit[0].value, if inner { b"inner" } else { b"outer".as_slice() });
            }
        }
    }

    #[test]
    fn blocks_are_cut_at_their_ends() {
        let all: Vec<_> = pieces(&(0x0001_fffe..=0x0003_0001)).collect();
        assert_eq!(all, [(1, 0xfffe, 0xffff), (2, 0, 0xffff), (3, 0, 1)]);
        assert_eq!(pieces(&(0..=u32::MAX)).count(), 65536);
    }
}
