use std::net::IpAddr;

use weir_conf::{Directive, read_text};

fn lines(text: &str) -> Vec<Directive> {
    let text = format!("geo $x {{ {text} }}");
    let tree =
        read_text(std::path::Path::new("trial.conf"), format!("http {{ {text} }}").as_bytes());
    tree.main[0].block()[0].block().to_vec()
}

#[test]
fn the_longest_prefix_wins() {
    let mut networks = super::Networks::default();
    for line in lines("default d; 10.0.0.0/8 a; 10.1.0.0/16 b; 2001:db8::/32 c; ::1 e;") {
        networks.line(&mut Vec::new(), &line, &line.args[0]).unwrap();
    }
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
