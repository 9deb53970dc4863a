//! Sizes, times, numbers and flags as nginx reads them. nginx: ngx_parse.c, ngx_string.c.
//!
//! The plain functions say only whether a value is right; those that take a [`Directive`] give
//! nginx's messages.

use std::time::Duration;

use crate::error::Error;
use crate::known::ArgumentKind;
use crate::tree::{Directive, Word};

/// The largest number that nginx holds (a signed 64-bit one).
const MAX: u64 = i64::MAX as u64;

/// Decimal digits and nothing else.
pub fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit).filter(|v| *v <= MAX)
    })
}

/// A size in bytes: `512`, `10k`, `8m`. No `g`: that is only for [`offset`].
pub fn size(text: &[u8]) -> Option<u64> {
    scaled(text, &[(b'k', 10), (b'm', 20)])
}

/// A size of files or bodies in bytes: `512`, `10k`, `8m`, `1g`.
pub fn offset(text: &[u8]) -> Option<u64> {
    scaled(text, &[(b'k', 10), (b'm', 20), (b'g', 30)])
}

fn scaled(text: &[u8], units: &[(u8, u32)]) -> Option<u64> {
    let (last, head) = text.split_last()?;
    match units.iter().find(|(unit, _)| *unit == last.to_ascii_lowercase()) {
        Some((_, shift)) => number(head)?.checked_mul(1 << shift).filter(|v| *v <= MAX),
        None => number(text),
    }
}

/// A time in milliseconds: `75`, `75s`, `1m 30s`, `500ms`. Years and months are not known here.
pub fn msec(text: &[u8]) -> Option<u64> {
    time(text, false)
}

/// A time in seconds: `75`, `1h 30m`, `1y 6M`. Milliseconds are not known here.
pub fn sec(text: &[u8]) -> Option<u64> {
    time(text, true)
}

/// [`msec`] as a duration.
pub fn duration(text: &[u8]) -> Option<Duration> {
    msec(text).map(Duration::from_millis)
}

/// `on` or `off` in any case.
pub fn flag(text: &[u8]) -> Option<bool> {
    if text.eq_ignore_ascii_case(b"on") {
        Some(true)
    } else if text.eq_ignore_ascii_case(b"off") {
        Some(false)
    } else {
        None
    }
}

/// A unit of time. Larger units must come before smaller ones, each once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Unit {
    Year,
    Month,
    Week,
    Day,
    Hour,
    Minute,
    Second,
    Millisecond,
    /// A number with a space and no unit behind it: seconds. Only digits may follow.
    Bare,
}

impl Unit {
    fn seconds(self) -> u64 {
        match self {
            Unit::Year => 365 * 86_400,
            Unit::Month => 30 * 86_400,
            Unit::Week => 7 * 86_400,
            Unit::Day => 86_400,
            Unit::Hour => 3600,
            Unit::Minute => 60,
            Unit::Second | Unit::Millisecond | Unit::Bare => 1,
        }
    }

    /// Whether this unit may follow that one.
    fn may_follow(self, before: Option<Unit>) -> bool {
        match (self, before) {
            (_, None) => true,
            (Unit::Year, Some(_)) => false,
            (Unit::Bare, Some(before)) => before < Unit::Second,
            (unit, Some(before)) => before < unit,
        }
    }
}

fn time(text: &[u8], in_seconds: bool) -> Option<u64> {
    let mut rest = text;
    let mut total = 0u64;
    let mut value = 0u64;
    let mut digits = false;
    // Times in milliseconds have no years and months, so the first unit is a week at most.
    let mut before = if in_seconds { None } else { Some(Unit::Month) };
    while let [byte, tail @ ..] = rest {
        if byte.is_ascii_digit() {
            digits = true;
            value = value.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
            value = Some(value).filter(|v| *v <= MAX)?;
            rest = tail;
            continue;
        }
        let (unit, tail) = unit(*byte, tail)?;
        if !unit.may_follow(before) || (in_seconds && unit == Unit::Millisecond) {
            return None;
        }
        before = Some(unit);
        let scale = if in_seconds || unit == Unit::Millisecond { 1 } else { 1000 };
        total = plus(total, value.checked_mul(unit.seconds() * scale)?)?;
        value = 0;
        let spaces = tail.iter().take_while(|b| **b == b' ').count();
        rest = tail.get(spaces..).unwrap_or_default();
    }
    let scale = if in_seconds { 1 } else { 1000 };
    digits.then_some(())?;
    plus(total, value.checked_mul(scale)?)
}

fn plus(total: u64, value: u64) -> Option<u64> {
    total.checked_add(value).filter(|v| *v <= MAX)
}

fn unit(byte: u8, tail: &[u8]) -> Option<(Unit, &[u8])> {
    Some(match (byte, tail) {
        (b'm', [b's', tail @ ..]) => (Unit::Millisecond, tail),
        (b'y', _) => (Unit::Year, tail),
        (b'M', _) => (Unit::Month, tail),
        (b'w', _) => (Unit::Week, tail),
        (b'd', _) => (Unit::Day, tail),
        (b'h', _) => (Unit::Hour, tail),
        (b'm', _) => (Unit::Minute, tail),
        (b's', _) => (Unit::Second, tail),
        (b' ', _) => (Unit::Bare, tail),
        _ => return None,
    })
}

impl Directive {
    /// Checks the arguments and returns warnings. `given` are the fixed words that the same
    /// directive was given before in this block.
    pub(crate) fn check_arguments(
        &self,
        value: ArgumentKind,
        given: &mut Vec<&'static str>,
    ) -> Result<Vec<Error>, Error> {
        match value {
            ArgumentKind::Any => {}
            ArgumentKind::Flag => drop(self.flag()?),
            ArgumentKind::Number { low, high: u64::MAX } => drop(self.number_within(low, None)?),
            ArgumentKind::Number { low, high } => drop(self.number_within(low, Some(high))?),
            ArgumentKind::SizeOrVariable
                if self.arg(0).is_some_and(|w| w.bytes.contains(&b'$')) => {}
            ArgumentKind::Size | ArgumentKind::SizeOrVariable => drop(self.size()?),
            ArgumentKind::Offset => drop(self.offset()?),
            ArgumentKind::Msec => drop(self.msec()?),
            ArgumentKind::Sec => drop(self.sec()?),
            ArgumentKind::Buffers => drop(self.buffers()?),
            ArgumentKind::OneOf(words) => drop(self.one_of(words)?),
            ArgumentKind::AnyOf(words) => return self.any_of(words, given),
        }
        Ok(Vec::new())
    }

    fn one_of(&self, words: &[&'static str]) -> Result<&'static str, Error> {
        self.arg(0).map_or_else(|| Err(self.problem("invalid value")), |w| self.word_of(w, words))
    }

    /// Each argument is one of the words; nginx warns of those that are given twice, and of a second value for one name
    /// (`samesite=lax` behind `samesite=strict`).
    fn any_of(
        &self,
        words: &[&'static str],
        given: &mut Vec<&'static str>,
    ) -> Result<Vec<Error>, Error> {
        let mut warnings = Vec::new();
        for arg in &self.args {
            let word = self.word_of(arg, words)?;
            let name = word.split_inclusive('=').next().filter(|name| name.ends_with('='));
            let is_taken =
                |given: &&str| *given == word || name.is_some_and(|name| given.starts_with(name));
            if given.iter().any(is_taken) {
                let message = format!("duplicate value \"{}\"", arg.lossy());
                warnings.push(self.warning(message).mark(arg.pos));
            }
            given.push(word);
        }
        Ok(warnings)
    }

    fn word_of(&self, arg: &Word, words: &[&'static str]) -> Result<&'static str, Error> {
        let found = words.iter().find(|word| arg.bytes.eq_ignore_ascii_case(word.as_bytes()));
        found.copied().ok_or_else(|| {
            let error = self.invalid("value", arg);
            error.hint(format!("it may be: {}", words.join(", ")))
        })
    }

    /// The only argument as a [`number`]; nginx's error is `invalid number`.
    pub fn number(&self) -> Result<u64, Error> {
        self.sole(number, "invalid number")
    }

    /// The only argument as a [`number`] within bounds; `None` is no upper bound.
    pub fn number_within(&self, low: u64, high: Option<u64>) -> Result<u64, Error> {
        let value = self.number()?;
        match high {
            None if value < low => {
                Err(self.error_at_argument(format!("value must be equal to or greater than {low}")))
            }
            Some(high) if !(low..=high).contains(&value) => {
                Err(self.error_at_argument(format!("value must be between {low} and {high}")))
            }
            _ => Ok(value),
        }
    }

    /// The only argument as a [`size`].
    pub fn size(&self) -> Result<u64, Error> {
        self.sole(size, "invalid value")
    }

    /// The only argument as an [`offset`].
    pub fn offset(&self) -> Result<u64, Error> {
        self.sole(offset, "invalid value")
    }

    /// The only argument as a time in milliseconds.
    pub fn msec(&self) -> Result<u64, Error> {
        self.sole(msec, "invalid value")
    }

    /// The only argument as a time in seconds.
    pub fn sec(&self) -> Result<u64, Error> {
        self.sole(sec, "invalid value")
    }

    /// The only argument as a time, to the millisecond.
    pub fn duration(&self) -> Result<Duration, Error> {
        self.msec().map(Duration::from_millis)
    }

    /// The only argument as a [`flag`].
    pub fn flag(&self) -> Result<bool, Error> {
        let text = self.arg(0).map(|w| w.bytes.as_slice()).unwrap_or_default();
        flag(text).ok_or_else(|| {
            self.error_at_argument(format!(
                "invalid value \"{}\" in \"{}\" directive, it must be \"on\" or \"off\"",
                String::from_utf8_lossy(text),
                self.name.lossy()
            ))
        })
    }

    /// The only argument as one of the given names, in any case.
    pub fn choice<T: Copy>(&self, names: &[(&str, T)]) -> Result<T, Error> {
        let text = self.arg(0).map(|w| w.bytes.as_slice()).unwrap_or_default();
        let found = names.iter().find(|(name, _)| text.eq_ignore_ascii_case(name.as_bytes()));
        found.map(|(_, value)| *value).ok_or_else(|| {
            self.error_at_argument(format!("invalid value \"{}\"", String::from_utf8_lossy(text)))
        })
    }

    /// The two arguments of `..._buffers`: how many, and how large each; neither may be 0.
    pub fn buffers(&self) -> Result<(u64, u64), Error> {
        let read = |word: Option<&Word>, f: fn(&[u8]) -> Option<u64>| {
            word.and_then(|w| f(&w.bytes)).filter(|v| *v > 0)
        };
        match (read(self.arg(0), number), read(self.arg(1), size)) {
            (Some(count), Some(size)) => Ok((count, size)),
            _ => Err(self.problem("invalid value")),
        }
    }

    fn sole<T>(&self, read: impl Fn(&[u8]) -> Option<T>, problem: &str) -> Result<T, Error> {
        let value = self.arg(0).and_then(|word| read(&word.bytes));
        value.ok_or_else(|| {
            self.error_at_argument(format!("\"{}\" directive {problem}", self.name.lossy()))
        })
    }

    fn error_at_argument(&self, message: String) -> Error {
        self.error_at(self.arg(0).unwrap_or(&self.name), message)
    }
}

#[cfg(test)]
mod tests;
