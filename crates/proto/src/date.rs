//! Dates: seconds since 1970 to text and back. nginx: ngx_parse_time.c, ngx_times.c.
//!
//! Local times take the offset from UTC in seconds from the caller.

const DAY: i64 = 86400;
/// The last second of the year 9999: nothing later is written.
const LAST: i64 = 253_402_300_799;

const WEEK: [&[u8; 3]; 7] = [b"Sun", b"Mon", b"Tue", b"Wed", b"Thu", b"Fri", b"Sat"];
const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];
const DAYS_OF_MONTH: [i64; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

/// A point in time as a calendar has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calendar {
    /// 1970 to 9999.
    pub year: u32,
    /// 1 to 12.
    pub month: u32,
    /// 1 to 31.
    pub day: u32,
    /// 0 to 23.
    pub hour: u32,
    /// 0 to 59.
    pub minute: u32,
    /// 0 to 59.
    pub second: u32,
    /// 0 is Sunday.
    pub weekday: u32,
}

impl Calendar {
    /// The UTC calendar of `time`, seconds since 1970; times before count as 0.
    pub fn at(time: i64) -> Calendar {
        let time = time.clamp(0, LAST);
        let (days, seconds) = (time / DAY, (time % DAY) as u32);
        // days since 1 March of year 0, so that a leap day is the last of its year
        let shifted = days + 719_468;
        let era = shifted / 146_097;
        let of_era = shifted % 146_097;
        let year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        let year = era * 400 + year_of_era + i64::from(month <= 2);
        Calendar {
            year: year as u32,
            month: month as u32,
            day: day as u32,
            hour: seconds / 3600,
            minute: seconds / 60 % 60,
            second: seconds % 60,
            weekday: ((days + 4) % 7) as u32,
        }
    }

    fn week_name(&self) -> &'static [u8] {
        WEEK.get(self.weekday as usize).map_or(b"", |name| *name)
    }

    fn month_name(&self) -> &'static [u8] {
        MONTHS.get(self.month as usize - 1).map_or(b"", |name| *name)
    }
}

/// `Mon, 28 Sep 1970 06:00:00 GMT`, for `Date` and its kin.
pub fn imf_fixdate(time: i64) -> [u8; 29] {
    let c = Calendar::at(time);
    let mut out = DateText::new(*b"Www, 00 Mmm 0000 00:00:00 GMT");
    out.named_day(&c);
    out.number(12, 4, c.year);
    out.clock(17, &c);
    out.bytes
}

/// `28/Sep/1970:12:00:00 +0600`, of access logs (`$time_local`).
pub fn access_log(time: i64, offset: i32) -> [u8; 26] {
    let c = Calendar::at(time.saturating_add(i64::from(offset)));
    let mut out = DateText::new(*b"00/Mmm/0000:00:00:00 +0000");
    out.number(0, 2, c.day);
    out.put(3, c.month_name());
    out.number(7, 4, c.year);
    out.clock(12, &c);
    out.zone([21, 22, 24], offset);
    out.bytes
}

/// `1970-09-28T12:00:00+06:00` (`$time_iso8601`).
pub fn iso8601(time: i64, offset: i32) -> [u8; 25] {
    let c = Calendar::at(time.saturating_add(i64::from(offset)));
    let mut out = DateText::new(*b"0000-00-00T00:00:00+00:00");
    out.numbered_day(&c);
    out.clock(11, &c);
    out.zone([19, 20, 23], offset);
    out.bytes
}

/// `1970/09/28 12:00:00`, of error logs.
pub fn error_log(time: i64, offset: i32) -> [u8; 19] {
    let c = Calendar::at(time.saturating_add(i64::from(offset)));
    let mut out = DateText::new(*b"0000/00/00 00:00:00");
    out.numbered_day(&c);
    out.clock(11, &c);
    out.bytes
}

/// `Sep 28 12:00:00`, of syslog; the day is padded with a space.
pub fn syslog(time: i64, offset: i32) -> [u8; 15] {
    let c = Calendar::at(time.saturating_add(i64::from(offset)));
    let mut out = DateText::new(*b"Mmm  0 00:00:00");
    out.put(0, c.month_name());
    if c.day < 10 {
        out.number(5, 1, c.day);
    } else {
        out.number(4, 2, c.day);
    }
    out.clock(7, &c);
    out.bytes
}

/// `Mon, 28-Sep-70 06:00:00 GMT`, of cookies: years up to 2037 have two digits, since the
/// browsers that this form was made for know no others.
pub fn cookie(time: i64, out: &mut Vec<u8>) {
    let c = Calendar::at(time);
    if c.year > 2037 {
        let mut text = DateText::new(*b"Www, 00-Mmm-0000 00:00:00 GMT");
        text.number(12, 4, c.year);
        text.clock(17, &c);
        text.named_day(&c);
        out.extend_from_slice(&text.bytes);
    } else {
        let mut text = DateText::new(*b"Www, 00-Mmm-00 00:00:00 GMT");
        text.number(12, 2, c.year % 100);
        text.clock(15, &c);
        text.named_day(&c);
        out.extend_from_slice(&text.bytes);
    }
}

/// A fixed text with places to fill in.
struct DateText<const N: usize> {
    bytes: [u8; N],
}

impl<const N: usize> DateText<N> {
    fn new(bytes: [u8; N]) -> DateText<N> {
        DateText { bytes }
    }

    fn put(&mut self, at: usize, text: &[u8]) {
        if let Some(place) = self.bytes.get_mut(at..at + text.len()) {
            place.copy_from_slice(text);
        }
    }

    fn number(&mut self, at: usize, width: usize, mut value: u32) {
        for digit in self.bytes.iter_mut().skip(at).take(width).rev() {
            *digit = b'0' + (value % 10) as u8;
            value /= 10;
        }
    }

    fn clock(&mut self, at: usize, c: &Calendar) {
        self.number(at, 2, c.hour);
        self.number(at + 3, 2, c.minute);
        self.number(at + 6, 2, c.second);
    }

    /// Sign, hours and minutes, at these places, of an offset in seconds.
    fn zone(&mut self, [sign, hours, minutes]: [usize; 3], offset: i32) {
        let total = offset.unsigned_abs() / 60;
        self.put(sign, if offset < 0 { b"-" } else { b"+" });
        self.number(hours, 2, total / 60);
        self.number(minutes, 2, total % 60);
    }

    /// `1970-09-28`
    fn numbered_day(&mut self, c: &Calendar) {
        self.number(0, 4, c.year);
        self.number(5, 2, c.month);
        self.number(8, 2, c.day);
    }

    /// `Mon, 28 Sep`
    fn named_day(&mut self, c: &Calendar) {
        self.put(0, c.week_name());
        self.number(5, 2, c.day);
        self.put(8, c.month_name());
    }
}

/// Reads a date of HTTP in any of its three forms:
/// `Sun, 06 Nov 1994 08:49:37 GMT`, `Sunday, 06-Nov-94 08:49:37 GMT`, `Sun Nov  6 08:49:37 1994`.
/// Names of days and zones are not looked at, names of months as little as tells them apart.
pub fn parse(value: &[u8]) -> Option<i64> {
    let mut r = DateReader { rest: value };
    // asctime's form has a space before any comma
    let separator = r.rest.iter().position(|ch| matches!(ch, b',' | b' '))?;
    let asctime = r.rest.get(separator) == Some(&b' ');
    r.skip(separator + 1);
    r.spaces();
    if r.rest.len() < 18 {
        return None;
    }
    let (day, month, year, clock) =
        if asctime { asctime_parts(&mut r)? } else { fixdate_parts(&mut r)? };
    seconds(year, month, day).map(|midnight| midnight + clock)
}

type DateParts = (i64, usize, i64, i64);

/// `06 Nov 1994 08:49:37` or `06-Nov-94 08:49:37`.
fn fixdate_parts(r: &mut DateReader<'_>) -> Option<DateParts> {
    let day = r.digits(2)?;
    let separator = r.byte()?;
    let rfc850 = match separator {
        b'-' => true,
        b' ' if r.rest.len() >= 17 => false,
        _ => return None,
    };
    let month = r.month()?;
    r.require(separator)?;
    let year = if rfc850 {
        let year = r.digits(2)?;
        year + if year < 70 { 2000 } else { 1900 }
    } else {
        r.digits(4)?
    };
    r.require(b' ')?;
    Some((day, month, year, r.clock()?))
}

/// `Nov  6 08:49:37 1994`.
fn asctime_parts(r: &mut DateReader<'_>) -> Option<DateParts> {
    let month = r.month()?;
    r.byte()?;
    if r.rest.first() == Some(&b' ') {
        r.skip(1);
    }
    let mut day = r.digits(1)?;
    if r.rest.first() != Some(&b' ') {
        day = day * 10 + r.digits(1)?;
    }
    if r.rest.len() < 14 {
        return None;
    }
    r.require(b' ')?;
    let clock = r.clock()?;
    r.require(b' ')?;
    Some((day, month, r.digits(4)?, clock))
}

/// Seconds from 1970 to the beginning of a day; `month` counts from 0.
fn seconds(year: i64, month: usize, day: i64) -> Option<i64> {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let leap_day = day == 29 && month == 1;
    if (leap_day && !leap) || (!leap_day && day > *DAYS_OF_MONTH.get(month)?) {
        return None;
    }
    let month = month as i64;
    let (year, march_month) = if month < 2 { (year - 1, month + 10) } else { (year, month - 2) };
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100)
        + year.div_euclid(400)
        + (153 * march_month + 2) / 5
        + day
        - 1;
    Some((days - 719_468) * DAY)
}

struct DateReader<'a> {
    rest: &'a [u8],
}

impl DateReader<'_> {
    fn skip(&mut self, n: usize) {
        self.rest = self.rest.get(n..).unwrap_or_default();
    }

    fn spaces(&mut self) {
        self.skip(self.rest.iter().take_while(|&&ch| ch == b' ').count());
    }

    fn byte(&mut self) -> Option<u8> {
        let (&first, behind) = self.rest.split_first()?;
        self.rest = behind;
        Some(first)
    }

    fn require(&mut self, wanted: u8) -> Option<()> {
        (self.byte()? == wanted).then_some(())
    }

    fn digits(&mut self, n: usize) -> Option<i64> {
        let (digits, behind) = self.rest.split_at_checked(n)?;
        self.rest = behind;
        digits
            .iter()
            .try_fold(0, |value, ch| ch.is_ascii_digit().then(|| value * 10 + i64::from(ch - b'0')))
    }

    /// `08:49:37`, in seconds.
    fn clock(&mut self) -> Option<i64> {
        let hour = self.digits(2)?;
        self.require(b':')?;
        let minute = self.digits(2)?;
        self.require(b':')?;
        let second = self.digits(2)?;
        (hour < 24 && minute < 60 && second < 60).then_some(hour * 3600 + minute * 60 + second)
    }

    fn month(&mut self) -> Option<usize> {
        let (&name, behind) = self.rest.split_first_chunk::<3>()?;
        self.rest = behind;
        Some(match name {
            [b'J', b'a', _] => 0,
            [b'J', _, b'n'] => 5,
            [b'J', _, _] => 6,
            [b'F', ..] => 1,
            [b'M', _, b'r'] => 2,
            [b'M', ..] => 4,
            [b'A', b'p', _] => 3,
            [b'A', ..] => 7,
            [b'S', ..] => 8,
            [b'O', ..] => 9,
            [b'N', ..] => 10,
            [b'D', ..] => 11,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests;
