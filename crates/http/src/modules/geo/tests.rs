use std::net::IpAddr;

use weir_conf::{Directive, read_text};

use crate::trial::site;

fn complaint(lines: &str) -> String {
    site(&format!("geo $x {{ {lines} }}")).err().unwrap_or_default()
}

#[test]
fn complaints_are_those_of_nginx() {
    for (lines, text) in [
        ("1.2.3.4;", "invalid number of the geo parameters"),
        ("1.2.3 a;", "invalid network \"1.2.3\""),
        ("unix: a;", "invalid network \"unix:\""),
        (
            "1.2.3.4 a; ranges;",
            "the \"ranges\" directive must be the first directive inside \"geo\" block",
        ),
        ("ranges; 1.2.3.4 a;", "invalid range \"1.2.3.4\""),
        ("ranges; 1.2.3.4-1.2.3.3 a;", "invalid range \"1.2.3.4-1.2.3.3\""),
        (
            "ranges; 1.0.0.0-1.0.0.9 a; 1.0.0.5-1.0.0.20 b;",
            "range \"1.0.0.5-1.0.0.20\" overlaps \"1.0.0.0-1.0.0.9\"",
        ),
    ] {
        assert_eq!(complaint(lines), text, "{lines}");
    }
    assert_eq!(complaint("default a; 1.0.0.0/8 b; 255.255.255.255 c; delete 1.0.0.0/8;"), "");
    assert_eq!(site("geo x { }").unwrap_err(), "invalid variable name \"x\"");
}

fn lines(text: &str) -> Vec<Directive> {
    let text = format!("geo $x {{ {text} }}");
    let tree =
        read_text(std::path::Path::new("trial.conf"), format!("http {{ {text} }}").as_bytes());
    tree.main[0].block()[0].block().to_vec()
}

#[test]
fn the_longest_prefix_wins() {
    let mut networks = super::Networks::default();
    crate::trial::scope(|s| {
        for line in lines("default d; 10.0.0.0/8 a; 10.1.0.0/16 b; 2001:db8::/32 c; ::1 e;") {
            networks.line(s, &line, &line.args[0]).unwrap();
        }
    });
    for (ip, value) in [
        ("10.2.0.1", "a"),
        ("10.1.0.1", "b"),
        ("11.0.0.1", "d"),
        ("2001:db8::5", "c"),
        ("::1", "e"),
        ("::2", "d"),
    ] {
        let found = networks.find(Some(ip.parse::<IpAddr>().unwrap()));
        assert_eq!(found, Some(value.as_bytes()), "{ip}");
    }
    assert_eq!(networks.find(None), Some(b"d".as_slice()));
}
