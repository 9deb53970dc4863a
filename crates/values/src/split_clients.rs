//! Variables that have each of several values for a share of clients. nginx:
//! ngx_http_split_clients_module.

use weir_conf::{Directive as Line, Error, Spot};

use crate::reading::Reading;
use crate::subject::Subject;
use crate::template::Template;

/// A hundred percent, in hundredths of a percent.
const ALL: u32 = 10_000;

/// A value, and the share of clients that get it.
#[derive(Debug, PartialEq, Eq)]
struct Share {
    /// Hashes below this get the value. `None`: all that are left.
    below: Option<u32>,
    value: Vec<u8>,
}

/// `split_clients string $variable { ... }`
pub fn read<S: Subject>(s: &mut Reading<'_, S>, d: &Line) -> Result<(), Error> {
    let (Some(source), Some(variable)) = (d.arg(0), d.arg(1)) else { return Ok(()) };
    let source = s.template(d, source)?;
    let name = s.new_variable(d, variable)?;
    for (line, value) in d.block().iter().filter_map(|line| Some((line, line.arg(0)?))) {
        let text = std::iter::once(value.bytes.as_slice());
        s.variables.own_texts_of(name.as_bytes(), text, Spot::new(line, value));
    }
    let parts = parts(d)?;
    s.variables.define_changeable(&name, true, move |r, out| {
        value(&source, &parts, r, out);
        true
    });
    Ok(())
}

fn value<S: Subject>(source: &Template, parts: &[Share], r: &mut S, out: &mut Vec<u8>) {
    let hash = murmur(&source.eval(r));
    let part = parts.iter().find(|part| part.below.is_none_or(|below| hash < below));
    out.extend_from_slice(part.map_or(b"", |part| &part.value));
}

fn parts(d: &Line) -> Result<Vec<Share>, Error> {
    let (mut parts, mut sum, mut below) = (Vec::new(), 0u32, 0u32);
    for line in d.block() {
        let share = match line.name.bytes.as_slice() {
            b"*" => None,
            text => Some(percent(text).ok_or_else(|| line.invalid("percent value", &line.name))?),
        };
        sum = share.map_or(ALL, |share| sum.saturating_add(share));
        if sum > ALL {
            return Err(d.error("percent total is greater than 100%").at(d.close));
        }
        let share = share.filter(|_| sum < ALL);
        if let Some(share) = share {
            let more = u64::from(share) * u64::from(u32::MAX) / u64::from(ALL);
            below = below.saturating_add(more as u32);
        }
        let value = line.arg(0).map(|word| word.bytes.clone()).unwrap_or_default();
        parts.push(Share { below: share.map(|_| below), value });
    }
    Ok(parts)
}

/// `12.34%` in hundredths of a percent; not 0.
fn percent(text: &[u8]) -> Option<u32> {
    let digits = text.strip_suffix(b"%")?;
    let (whole, part) = match memchr::memchr(b'.', digits) {
        Some(at) => (digits.get(..at)?, digits.get(at + 1..)?),
        None => (digits, b"".as_slice()),
    };
    if part.len() > 2 || digits.is_empty() {
        return None;
    }
    let number = |text: &[u8]| match text {
        b"" => Some(0),
        text => weir_conf::values::number(text),
    };
    let scale = if part.len() == 1 { 10 } else { 1 };
    let value = number(whole)?.checked_mul(100)?.checked_add(number(part)? * scale)?;
    u32::try_from(value).ok().filter(|value| *value > 0)
}

/// MurmurHash2 with seed 0 (Austin Appleby). nginx uses it, so clients keep their share.
fn murmur(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = data.len() as u32;
    let (words, tail) = data.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !tail.is_empty() {
        let last = tail.iter().rev().fold(0, |last, byte| last << 8 | u32::from(*byte));
        hash = (hash ^ last).wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percents() {
        for (text, value) in [("50%", 5000), ("0.5%", 50), ("0.05%", 5), ("33.33%", 3333)] {
            assert_eq!(percent(text.as_bytes()), Some(value), "{text}");
        }
        for text in ["", "%", "5", "0%", "0.001%", "x%", "1.2.3%", "-1%"] {
            assert_eq!(percent(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn hashes_of_the_reference_implementation() {
        assert_eq!(murmur(b""), 0);
        assert_eq!(murmur(b"a"), 0x92685f5e);
        assert_eq!(murmur(b"127.0.0.1"), 0xb6131d91);
    }
}
