use proptest::prelude::*;

use super::*;

#[test]
fn numbers() {
    assert_eq!(number(b"0"), Some(0));
    assert_eq!(number(b"9223372036854775807"), Some(MAX));
    for bad in ["", "-1", "1 ", "0x1", "9223372036854775808", "99999999999999999999"] {
        assert_eq!(number(bad.as_bytes()), None, "{bad}");
    }
}

#[test]
fn sizes() {
    assert_eq!(size(b"512"), Some(512));
    assert_eq!(size(b"10k"), Some(10_240));
    assert_eq!(size(b"8M"), Some(8 << 20));
    assert_eq!(offset(b"2G"), Some(2 << 30));
    for bad in ["", "k", "1g", "512kb", "-1k", "9223372036854775807k"] {
        assert_eq!(size(bad.as_bytes()), None, "{bad}");
    }
    assert_eq!(offset(b"9999999999g"), None);
}

#[test]
fn times() {
    for (text, milliseconds, seconds) in [
        ("75", Some(75_000), Some(75)),
        ("75s", Some(75_000), Some(75)),
        ("500ms", Some(500), None),
        ("1h 30m", Some(5_400_000), Some(5400)),
        ("1h30m", Some(5_400_000), Some(5400)),
        ("1m 5s 3ms", Some(65_003), None),
        ("2d 3", Some(172_803_000), Some(172_803)),
        ("1w", Some(604_800_000), Some(604_800)),
        ("1M", None, Some(2_592_000)),
        ("1y", None, Some(31_536_000)),
        ("1y 1M", None, Some(34_128_000)),
        ("1 ", Some(1000), Some(1)),
        ("30m 1h", None, None),
        ("1s 1s", None, None),
        ("1M 1y", None, None),
        ("5s 5", Some(10_000), Some(10)),
        ("21days", None, None),
        ("", None, None),
        ("s", None, None),
        ("-1", None, None),
        ("1.5s", None, None),
        ("99999999999999999999", None, None),
        ("9223372036854775807h", None, None),
        ("9223372036854775807", None, Some(MAX)),
    ] {
        assert_eq!(msec(text.as_bytes()), milliseconds, "{text}");
        assert_eq!(sec(text.as_bytes()), seconds, "{text}");
    }
}

#[test]
fn flags() {
    assert_eq!(flag(b"On"), Some(true));
    assert_eq!(flag(b"OFF"), Some(false));
    assert_eq!(flag(b"yes"), None);
}

fn directive(text: &str) -> Directive {
    let tree = crate::read_text(std::path::Path::new("/c"), text.as_bytes());
    tree.main.into_iter().next().unwrap()
}

#[test]
fn messages_of_nginx() {
    let message = |e: Result<u64, Error>| e.unwrap_err().message;
    assert_eq!(message(directive("a x;").number()), "\"a\" directive invalid number");
    assert_eq!(message(directive("a 1kb;").size()), "\"a\" directive invalid value");
    assert_eq!(message(directive("a 1x;").msec()), "\"a\" directive invalid value");
    assert_eq!(
        message(directive("a 10;").number_within(1, Some(9))),
        "value must be between 1 and 9"
    );
    assert_eq!(
        message(directive("a 0;").number_within(1, None)),
        "value must be equal to or greater than 1"
    );
    assert_eq!(
        directive("a no;").flag().unwrap_err().message,
        "invalid value \"no\" in \"a\" directive, it must be \"on\" or \"off\""
    );
    let names = [("1.0", 10), ("1.1", 11)];
    assert_eq!(directive("a 1.1;").choice(&names), Ok(11));
    assert_eq!(directive("a 1.2;").choice(&names).unwrap_err().message, "invalid value \"1.2\"");
    assert_eq!(directive("a 8 4k;").buffers(), Ok((8, 4096)));
    for bad in ["a 0 4k;", "a 8 0;", "a 8;", "a x 4k;"] {
        let error = directive(bad).buffers().unwrap_err();
        assert_eq!(error.message, "\"a\" directive invalid value");
    }
}

proptest! {
    #[test]
    fn nothing_overflows(text in "[0-9]{0,20}[kKmMgGyMwdhms ]{0,3}[0-9]{0,20}[a-z ]{0,2}") {
        let text = text.as_bytes();
        for value in [number(text), size(text), offset(text), msec(text), sec(text)] {
            prop_assert!(value.is_none_or(|v| v <= MAX));
        }
    }

    #[test]
    fn sizes_multiply(n in 0u64..1_000_000) {
        prop_assert_eq!(size(format!("{n}k").as_bytes()), Some(n * 1024));
        prop_assert_eq!(offset(format!("{n}g").as_bytes()), Some(n << 30));
    }
}
