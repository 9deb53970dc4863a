use proptest::prelude::*;

use super::*;

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

const MORNING: i64 = 23_353_200; // 28 Sep 1970 07:00:00 UTC

#[test]
fn every_format() {
    assert_eq!(text(&imf_fixdate(MORNING)), "Mon, 28 Sep 1970 07:00:00 GMT");
    assert_eq!(text(&access_log(MORNING, 6 * 3600)), "28/Sep/1970:13:00:00 +0600");
    assert_eq!(text(&access_log(MORNING, -5400)), "28/Sep/1970:05:30:00 -0130");
    assert_eq!(text(&iso8601(MORNING, 19800)), "1970-09-28T12:30:00+05:30");
    assert_eq!(text(&error_log(MORNING, 0)), "1970/09/28 07:00:00");
    assert_eq!(text(&syslog(MORNING, 0)), "Sep 28 07:00:00");
    assert_eq!(text(&syslog(0, 0)), "Jan  1 00:00:00");
}

#[test]
fn cookie_years_grow_in_2038() {
    let cookie = |time| {
        let mut out = Vec::new();
        super::cookie(time, &mut out);
        String::from_utf8(out).unwrap()
    };
    assert_eq!(cookie(MORNING), "Mon, 28-Sep-70 07:00:00 GMT");
    assert_eq!(cookie(2_145_916_799), "Thu, 31-Dec-37 23:59:59 GMT");
    assert_eq!(cookie(2_145_916_800), "Fri, 01-Jan-2038 00:00:00 GMT");
}

#[test]
fn time_stops_at_its_ends() {
    assert_eq!(text(&imf_fixdate(-1)), "Thu, 01 Jan 1970 00:00:00 GMT");
    assert_eq!(text(&imf_fixdate(i64::MAX)), "Fri, 31 Dec 9999 23:59:59 GMT");
    assert_eq!(text(&access_log(i64::MAX, i32::MIN)).len(), 26);
}

#[test]
fn all_three_forms_are_read() {
    let time = Some(784_111_777);
    assert_eq!(parse(b"Sun, 06 Nov 1994 08:49:37 GMT"), time);
    assert_eq!(parse(b"Sunday, 06-Nov-94 08:49:37 GMT"), time);
    assert_eq!(parse(b"Sun Nov  6 08:49:37 1994"), time);
    assert_eq!(parse(b"X,06 Nov 1994 08:49:37"), time);
    assert_eq!(parse(b"Sun Nov 06 08:49:37 1994"), time);
}

#[test]
fn two_digit_years_turn_at_70() {
    assert_eq!(parse(b"Thursday, 01-Jan-70 00:00:00 GMT"), Some(0));
    assert_eq!(parse(b"Thursday, 31-Dec-69 00:00:00 GMT"), Some(3_155_673_600));
}

#[test]
fn what_is_no_date_is_refused() {
    for value in [
        "",
        "rubbish",
        "Sun, 06 Nov 1994 08:49:3",
        "Sun, 6 Nov 1994 08:49:37 GMT",
        "Sun, 06 Xov 1994 08:49:37 GMT",
        "Sun, 06/Nov/1994 08:49:37 GMT",
        "Sun, 32 Jan 1994 08:49:37 GMT",
        "Tue, 29 Feb 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 24:00:00 GMT",
        "Sun, 06 Nov 1994 08:60:00 GMT",
        "Sun, 06 Nov 1994 08-49-37 GMT",
        "Sun Nov  6 08:49:37 94",
    ] {
        assert_eq!(parse(value.as_bytes()), None, "{value}");
    }
    assert!(parse(b"Tue, 29 Feb 2000 08:49:37 GMT").is_some());
    assert_eq!(parse(b"Tue, 29 Feb 2100 08:49:37 GMT"), None);
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(time in 0..=LAST) {
        prop_assert_eq!(parse(&imf_fixdate(time)), Some(time));
        let mut out = Vec::new();
        cookie(time, &mut out);
        if time > 2_145_916_799 {
            prop_assert_eq!(out.len(), 29);
        } else {
            prop_assert_eq!(parse(&out), Some(time));
        }
    }

    #[test]
    fn days_follow_one_another(time in 0..LAST - DAY) {
        let (today, tomorrow) = (Calendar::at(time), Calendar::at(time + DAY));
        prop_assert_eq!((today.weekday + 1) % 7, tomorrow.weekday);
        prop_assert!(
            (today.year, today.month, today.day) < (tomorrow.year, tomorrow.month, tomorrow.day)
        );
    }

    #[test]
    fn any_text_is_decided(text: Vec<u8>, tail in "[A-Za-z0-9:, -]{0,40}") {
        parse(&text);
        parse(tail.as_bytes());
    }
}
