//! Formats dates as strftime(3) does in the C locale, for `config timefmt`.

use std::fmt::Write;

use weir_proto::date::Calendar;

/// A time in a time zone.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'a> {
    /// Seconds since 1970.
    pub unix: i64,
    /// Seconds east of UTC.
    pub offset: i32,
    /// The zone's abbreviation.
    pub zone: &'a str,
}

const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Formats a time.
pub fn strftime(format: &[u8], moment: Moment<'_>) -> Vec<u8> {
    let date = Date::new(moment);
    let mut out = Vec::new();
    let mut rest = format.iter().copied();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut kind = rest.next();
        // In the C locale, `%E` and `%O` have no effect.
        if let Some(b'E' | b'O') = kind {
            kind = rest.next();
        }
        let Some(kind) = kind else { break };
        let mut text = String::new();
        if date.write(kind, &mut text).is_ok() && !text.is_empty() {
            out.extend_from_slice(text.as_bytes());
        }
    }
    out
}

struct Date<'a> {
    moment: Moment<'a>,
    c: Calendar,
    /// Days since 1 January.
    day_of_year: u32,
}

impl<'a> Date<'a> {
    fn new(moment: Moment<'a>) -> Date<'a> {
        let local = moment.unix + i64::from(moment.offset);
        let c = Calendar::at(local);
        let leap = u32::from(is_leap(c.year));
        let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
        let month = (c.month as usize).saturating_sub(1).min(11);
        let day_of_year = before[month] + if month > 1 { leap } else { 0 } + c.day - 1;
        Date { moment, c, day_of_year }
    }

    fn write(&self, kind: u8, out: &mut String) -> std::fmt::Result {
        let c = &self.c;
        let hour12 = match c.hour % 12 {
            0 => 12,
            hour => hour,
        };
        match kind {
            b'a' => out.write_str(&self.weekday()[..3]),
            b'A' => out.write_str(self.weekday()),
            b'b' | b'h' => out.write_str(&self.month()[..3]),
            b'B' => out.write_str(self.month()),
            b'c' => self.all(b"a b e T Y", b' ', out),
            b'C' => write!(out, "{:02}", c.year / 100),
            b'd' => write!(out, "{:02}", c.day),
            b'D' | b'x' => self.all(b"m d y", b'/', out),
            b'e' => write!(out, "{:2}", c.day),
            b'F' => self.all(b"Y m d", b'-', out),
            b'g' => write!(out, "{:02}", self.iso_week().0.rem_euclid(100)),
            b'G' => write!(out, "{}", self.iso_week().0),
            b'H' => write!(out, "{:02}", c.hour),
            b'I' => write!(out, "{hour12:02}"),
            b'j' => write!(out, "{:03}", self.day_of_year + 1),
            b'k' => write!(out, "{:2}", c.hour),
            b'l' => write!(out, "{hour12:2}"),
            b'm' => write!(out, "{:02}", c.month),
            b'M' => write!(out, "{:02}", c.minute),
            b'n' => out.write_char('\n'),
            b'p' => out.write_str(if c.hour < 12 { "AM" } else { "PM" }),
            b'P' => out.write_str(if c.hour < 12 { "am" } else { "pm" }),
            b'r' => {
                self.all(b"I M S", b':', out)?;
                out.write_char(' ')?;
                self.write(b'p', out)
            }
            b'R' => self.all(b"H M", b':', out),
            b's' => write!(out, "{}", self.moment.unix),
            b'S' => write!(out, "{:02}", c.second),
            b't' => out.write_char('\t'),
            b'T' | b'X' => self.all(b"H M S", b':', out),
            b'u' => write!(out, "{}", (self.day() + 6) % 7 + 1),
            b'U' => write!(out, "{:02}", (self.day_of_year + 7 - self.day()) / 7),
            b'V' => write!(out, "{:02}", self.iso_week().1),
            b'w' => write!(out, "{}", self.day()),
            b'W' => write!(out, "{:02}", (self.day_of_year + 7 - (self.day() + 6) % 7) / 7),
            b'y' => write!(out, "{:02}", c.year.rem_euclid(100)),
            b'Y' => write!(out, "{}", c.year),
            b'z' => {
                let minutes = self.moment.offset.abs() / 60;
                let sign = if self.moment.offset < 0 { '-' } else { '+' };
                write!(out, "{sign}{:02}{:02}", minutes / 60, minutes % 60)
            }
            b'Z' => out.write_str(self.moment.zone),
            b'%' => out.write_char('%'),
            other => write!(out, "%{}", char::from(other)),
        }
    }

    /// Formats several conversions. A space stands for the separator.
    fn all(&self, kinds: &[u8], separator: u8, out: &mut String) -> std::fmt::Result {
        for &kind in kinds {
            match kind {
                b' ' => out.write_char(char::from(separator))?,
                kind => self.write(kind, out)?,
            }
        }
        Ok(())
    }

    /// The day of the week; 0 is Sunday.
    fn day(&self) -> u32 {
        self.c.weekday % 7
    }

    fn weekday(&self) -> &'static str {
        DAYS[self.day() as usize]
    }

    fn month(&self) -> &'static str {
        MONTHS[(self.c.month as usize).saturating_sub(1).min(11)]
    }

    /// Year and week of ISO 8601. A week belongs to the year of its Thursday.
    fn iso_week(&self) -> (i64, u32) {
        let year = i64::from(self.c.year);
        let days_of = |year: i64| 365 + i64::from(is_leap(year));
        let from_monday = i64::from((self.day() + 6) % 7);
        let thursday = i64::from(self.day_of_year) - from_monday + 3;
        if thursday < 0 {
            return (year - 1, ((thursday + days_of(year - 1)) / 7 + 1) as u32);
        }
        if thursday >= days_of(year) {
            return (year + 1, 1);
        }
        (year, (thursday / 7 + 1) as u32)
    }
}

fn is_leap(year: impl Into<i64>) -> bool {
    let year = year.into();
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

#[cfg(test)]
mod tests {
    use super::{Moment, strftime};

    fn at(unix: i64, format: &str) -> String {
        let moment = Moment { unix, offset: 0, zone: "GMT" };
        String::from_utf8(strftime(format.as_bytes(), moment)).unwrap()
    }

    #[test]
    fn the_usual_format_reads_as_c_writes_it() {
        let usual = "%A, %d-%b-%Y %H:%M:%S %Z";
        assert_eq!(at(784_111_777, usual), "Sunday, 06-Nov-1994 08:49:37 GMT");
        let moment = Moment { unix: 784_111_777, offset: -5400, zone: "X" };
        assert_eq!(strftime(b"%F %R %z", moment), b"1994-11-06 07:19 -0130");
    }

    #[test]
    fn conversions_are_those_of_the_c_locale() {
        // 2021-01-03 was a Sunday of the last week of 2020.
        let sunday = 1_609_632_000;
        assert_eq!(at(sunday, "%G-W%V-%u %U %W %j %g"), "2020-W53-7 01 00 003 20");
        assert_eq!(
            at(sunday, "%c|%D|%r|%e|%%|%n"),
            "Sun Jan  3 00:00:00 2021|01/03/21|12:00:00 AM| 3|%|\n"
        );
        assert_eq!(at(sunday, "%Ey %Om %s"), format!("21 01 {sunday}"));
        assert_eq!(at(0, "%Q%"), "%Q");
    }
}
