//! A reader of DER that never copies: tag, length, contents.

/// One value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DerValue<'a> {
    /// Its tag byte.
    pub tag: u8,
    /// Its contents.
    pub body: &'a [u8],
    /// Tag, length and contents.
    pub whole: &'a [u8],
}

/// Values one after another.
#[derive(Debug, Clone, Copy)]
pub struct DerReader<'a>(&'a [u8]);

/// A tag.
pub const INTEGER: u8 = 0x02;
/// A tag.
pub const BIT_STRING: u8 = 0x03;
/// A tag.
pub const OCTET_STRING: u8 = 0x04;
/// A tag.
pub const OID: u8 = 0x06;
/// A tag.
pub const SEQUENCE: u8 = 0x30;
/// A tag.
pub const SET: u8 = 0x31;

impl<'a> Iterator for DerReader<'a> {
    type Item = DerValue<'a>;

    fn next(&mut self) -> Option<DerValue<'a>> {
        let (&tag, rest) = self.0.split_first()?;
        // Tags of more than one byte do not occur in certificates.
        if tag & 0x1f == 0x1f {
            return None;
        }
        let (&first, rest) = rest.split_first()?;
        let (len, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x84 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (bytes.iter().fold(0, |n, b| n << 8 | usize::from(*b)), rest)
            }
            _ => return None,
        };
        let (body, rest) = rest.split_at_checked(len)?;
        let whole = self.0.get(..self.0.len() - rest.len())?;
        self.0 = rest;
        Some(DerValue { tag, body, whole })
    }
}

impl<'a> DerReader<'a> {
    /// Reads these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        DerReader(bytes)
    }

    /// Nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Calls `read` with each value that is left. `None` if `read` returns `None`, or if bytes
    /// remain that are no value. A plain loop would take those for the end.
    pub fn each(mut self, mut read: impl FnMut(DerValue<'a>) -> Option<()>) -> Option<()> {
        self.try_for_each(&mut read)?;
        self.is_empty().then_some(())
    }

    /// The next value, which must have this tag.
    pub fn require(&mut self, tag: u8) -> Option<DerValue<'a>> {
        self.next().filter(|v| v.tag == tag)
    }

    /// The next value if it has this tag. Another one is left in place.
    pub fn optional(&mut self, tag: u8) -> Option<DerValue<'a>> {
        if self.0.first() != Some(&tag) {
            return None;
        }
        self.next()
    }
}

impl<'a> DerValue<'a> {
    /// Reads the values inside.
    pub fn inner(&self) -> DerReader<'a> {
        DerReader(self.body)
    }

    /// The bytes of a BIT STRING of whole bytes.
    pub fn bits(&self) -> Option<&'a [u8]> {
        self.body.split_first().filter(|(unused, _)| **unused == 0).map(|(_, bytes)| bytes)
    }
}

/// Encodes a value. Its contents are the concatenated parts.
pub fn write(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let bytes = body.len().to_be_bytes();
    let digits = bytes.iter().position(|b| *b != 0).and_then(|at| bytes.get(at..));
    let mut out = vec![tag];
    match digits.unwrap_or_default() {
        [] => out.push(0),
        [one @ 0..=0x7f] => out.push(*one),
        several => {
            out.push(0x80 | several.len() as u8);
            out.extend_from_slice(several);
        }
    }
    out.extend_from_slice(&body);
    out
}

/// A point in time (UTCTime or GeneralizedTime), in seconds since 1970.
pub fn time(value: &DerValue<'_>) -> Option<i64> {
    let digits = value.body.strip_suffix(b"Z")?;
    let mut pairs = digits.chunks(2).map(|pair| match pair {
        [a @ b'0'..=b'9', b @ b'0'..=b'9'] => Some(i64::from(a - b'0') * 10 + i64::from(b - b'0')),
        _ => None,
    });
    let mut next = || pairs.next().flatten();
    let year = match value.tag {
        0x17 => next().map(|y| if y < 50 { 2000 + y } else { 1900 + y })?,
        0x18 => next()? * 100 + next()?,
        _ => return None,
    };
    let (month, day, hour, minute) = (next()?, next()?, next()?, next()?);
    let second = next().unwrap_or(0);
    if !(1..=12).contains(&month) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let next = if month == 12 { days(year + 1, 1, 1) } else { days(year, month + 1, 1) };
    if !(1..=next - days(year, month, 1)).contains(&day) {
        return None;
    }
    Some(days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second)
}

/// As [`time`], in the form that certificates require: with seconds and without fractions.
pub fn exact_time(value: &DerValue<'_>) -> Option<i64> {
    let length = if value.tag == 0x17 { "YYMMDDhhmmssZ".len() } else { "YYYYMMDDhhmmssZ".len() };
    time(value).filter(|_| value.body.len() == length)
}

/// Days since 1970-01-01 of a date of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March here, so that the leap day is the last of its year.
    let year = if month < 3 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let in_era = year.rem_euclid(400);
    let in_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + in_era * 365 + in_era / 4 - in_era / 100 + in_year - 719_468
}

/// A time as OpenSSL prints it: `Jan  2 03:04:05 2026 GMT`.
pub fn print_time(secs: i64) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (day, second) = (secs.div_euclid(86_400), secs.rem_euclid(86_400));
    let shifted = day + 719_468;
    let era = shifted.div_euclid(146_097);
    let in_era = shifted.rem_euclid(146_097);
    let year = (in_era - in_era / 1460 + in_era / 36_524 - in_era / 146_096) / 365;
    let in_year = in_era - (365 * year + year / 4 - year / 100);
    let part = (5 * in_year + 2) / 153;
    let month = (part + 2) % 12;
    let year = year + era * 400 + i64::from(month < 2);
    let name = MONTHS.get(month as usize).copied().unwrap_or_default();
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let day = in_year - (153 * part + 2) / 5 + 1;
    format!("{name} {day:2} {hour:02}:{minute:02}:{second:02} {year} GMT")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn utc(text: &str) -> Option<i64> {
        time(&DerValue { tag: 0x17, body: text.as_bytes(), whole: &[] })
    }

    #[test]
    fn times_are_seconds_since_1970() {
        assert_eq!(utc("700101000000Z"), Some(0));
        assert_eq!(utc("000229120000Z"), Some(951_825_600));
        assert_eq!(utc("991301000000Z"), None);
        assert_eq!(utc("010229000000Z"), None);
        assert_eq!(utc("011231240000Z"), None);
        let long = DerValue { tag: 0x18, body: b"20380119031408Z", whole: &[] };
        assert_eq!(time(&long), Some(1 << 31));
        assert_eq!(print_time(951_825_600), "Feb 29 12:00:00 2000 GMT");
        assert_eq!(print_time(1 << 31), "Jan 19 03:14:08 2038 GMT");
    }

    #[test]
    fn a_length_beyond_the_end_is_refused() {
        assert_eq!(DerReader::new(&[0x30, 5, 0]).next(), None);
        assert_eq!(DerReader::new(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]).next(), None);
    }

    proptest! {
        #[test]
        fn an_encoded_value_reads_back(body: Vec<u8>, more in 0usize..70_000) {
            let long = vec![7; more];
            let written = write(SEQUENCE, &[&body, &long]);
            let mut reader = DerReader::new(&written);
            prop_assert_eq!(reader.require(SEQUENCE).unwrap().body, [body, long].concat());
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn any_bytes_are_decided(bytes: Vec<u8>) {
            for value in DerReader::new(&bytes) {
                let _ = time(&value);
            }
        }
    }
}
