use proptest::prelude::*;

use super::*;

fn done(input: &[u8]) -> (Option<ProxyHeader>, usize) {
    match parse(input) {
        Ok(ProxyProgress::Done { header, len }) => (header.map(|h| *h), len),
        other => panic!("{other:?}"),
    }
}

fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let mut out = SIGNATURE.to_vec();
    out.extend([command, family]);
    out.extend((body.len() as u16).to_be_bytes());
    out.extend(body);
    out
}

fn ipv4(tlvs: &[u8]) -> Vec<u8> {
    let addresses = [192, 0, 2, 1, 192, 0, 2, 2, 0, 123, 22, 46];
    v2(0x21, 0x11, &[addresses.as_slice(), tlvs].concat())
}

#[test]
fn version_1_lines() {
    let (header, len) = done(b"PROXY TCP4 192.0.2.1 192.0.2.2 123 5678\r\nGET /");
    let header = header.unwrap();
    assert_eq!(header.source, b"192.0.2.1");
    assert_eq!(header.destination, b"192.0.2.2");
    assert_eq!((header.source_port, header.destination_port, len), (123, 5678, 41));
    let (header, _) = done(b"PROXY TCP6 2001:Db8::1 ::2 1 2\r\n");
    // As it was sent.
    assert_eq!(header.unwrap().source, b"2001:Db8::1");
    assert_eq!(done(b"PROXY UNKNOWN\r\nx"), (None, 15));
    assert_eq!(done(b"PROXY UNKNOWN 1 2 3\r\n"), (None, 21));
}

#[test]
fn what_is_no_header() {
    for text in [
        "GET / HTTP/1.1",
        "PROXY",
        "PROXY TCP5 1.1.1.1 2.2.2.2 1 2",
        "PROXY TCP4 1.1.1.1 2.2.2.2 1",
        "PROXY TCP4 1.1.1.1 2.2.2.2 1 65536",
        "PROXY TCP4 1.1.1.1 2.2.2.2 1 +2",
        "PROXY TCP4 1.1.1.1 host 1 2",
        "PROXY TCP4 1.1.1.1 2.2.2.2 1 2 3",
    ] {
        let error = parse(format!("{text}\r\n\r\n").as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), format!("broken header: \"{text}\""));
    }
    assert!(parse(&[b"PROXY ", "x".repeat(101).as_bytes()].concat()).is_err());
    for line in ["PROXY TCP4 1.1.1.1 2.2.2.2 1 2\n", "PROXY UNKNOWN\nGET / HTTP/1.0\n"] {
        assert!(parse(line.as_bytes()).is_err());
    }
    let mut other = ipv4(b"");
    other[12] = 0x31;
    assert_eq!(parse(&other), Err(HeaderError::Version(3)));
    assert_eq!(parse(&v2(0x21, 0x11, &[0; 11])), Err(HeaderError::TooShort));
    assert_eq!(parse(&v2(0x21, 0x21, &[0; 35])), Err(HeaderError::TooShort));
    assert_eq!(parse(&v2(0x20, 0, &[0; 5000])), Err(HeaderError::TooLarge));
}

#[test]
fn version_2_headers() {
    let (header, len) = done(&ipv4(b""));
    let header = header.unwrap();
    assert_eq!((header.source.as_slice(), header.source_port), (&b"192.0.2.1"[..], 123));
    assert_eq!((header.destination_port, len), (5678, 28));
    let mut body = [0; 36];
    (body[0], body[15], body[33]) = (0x20, 1, 9);
    let (header, _) = done(&v2(0x21, 0x21, &body));
    let header = header.unwrap();
    assert_eq!((header.source.as_slice(), header.source_port), (&b"2000::1"[..], 9));
    // LOCAL, datagrams, Unix sockets: a header that names no client.
    for (command, family) in [(0x20, 0x11), (0x21, 0x12), (0x21, 0x31), (0x21, 0)] {
        assert_eq!(done(&v2(command, family, &[0; 4])), (None, 20));
    }
}

#[test]
fn extras_by_name_and_number() {
    let ssl = [&[7, 0, 0, 1, 2, 0x21, 0, 7][..], b"TLSv1.3"].concat();
    let tlvs = [
        &[0x01, 0, 2][..],
        b"h2",
        &[0xe1, 0, 0, SSL as u8, 0, ssl.len() as u8],
        &ssl,
        &[0x30, 0, 1, b'n'],
    ]
    .concat();
    let header = done(&ipv4(&tlvs)).0.unwrap();
    let get = |name: &str| header.tlv(name.as_bytes()).map(|v| v.map(|v| v.to_vec()));
    assert_eq!(get("alpn"), Ok(Some(b"h2".to_vec())));
    assert_eq!(get("0x1"), Ok(Some(b"h2".to_vec())));
    assert_eq!(get("0xE1"), Ok(Some(Vec::new())));
    assert_eq!(get("netns"), Ok(Some(b"n".to_vec())));
    assert_eq!(get("authority"), Ok(None));
    assert_eq!(get("ssl_verify"), Ok(Some(b"258".to_vec())));
    assert_eq!(get("ssl_version"), Ok(Some(b"TLSv1.3".to_vec())));
    assert_eq!(get("ssl_0x21"), Ok(Some(b"TLSv1.3".to_vec())));
    assert_eq!(get("ssl_cn"), Ok(None));
    assert_eq!(get("other"), Err(TlvError::Unknown));
    assert_eq!(get("0x"), Err(TlvError::Invalid));
    assert_eq!(get("0x+1"), Err(TlvError::Invalid));
    let broken = done(&ipv4(&[1, 0, 9, 0])).0.unwrap();
    assert_eq!(broken.tlv(b"alpn"), Err(TlvError::Broken));
}

proptest! {
    #[test]
    fn pieces_come_to_the_same(cut in 0usize..60, v1 in any::<bool>()) {
        let line = b"PROXY TCP4 192.0.2.1 192.0.2.2 123 5678\r\n".to_vec();
        let whole = if v1 { line } else { ipv4(&[1, 0, 1, b'x']) };
        let cut = cut.min(whole.len() - 1);
        prop_assert_eq!(parse(&whole[..cut]), Ok(ProxyProgress::More));
        prop_assert_eq!(done(&whole).1, whole.len());
    }

    #[test]
    fn any_bytes_are_decided(
        head in prop_oneof![Just(b"PROXY TCP4 ".to_vec()), Just(SIGNATURE.to_vec()), Just(Vec::new())],
        rest in proptest::collection::vec(any::<u8>(), 0..200),
        name in "[a-z0-9_]{0,6}",
    ) {
        let input = [head, rest].concat();
        if let Ok(ProxyProgress::Done { header, len }) = parse(&input) {
            prop_assert!(len <= input.len());
            let _ = header.map(|h| h.tlv(name.as_bytes()).map(|v| v.map(|v| v.len())));
        }
    }
}

#[test]
fn headers_of_version_2_have_a_checksum() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    let address = |port| std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let mut out = b"before".to_vec();
    write(2, Some((address(1), address(2))), false, &Extras::default(), &mut out);
    let head = &mut out[6..];
    let at = head.len() - 4;
    assert_eq!(head[at - 3..at], [3, 0, 4]);
    let told = u32::from_be_bytes(head[at..].try_into().unwrap());
    head[at..].fill(0);
    assert_eq!(crc32c(head), told);
    let Ok(ProxyProgress::Done { header, len }) = parse(head) else { panic!("{head:?}") };
    assert_eq!((header.map(|h| h.source_port), len), (Some(1), head.len()));
}

#[test]
fn two_families_are_told_of_in_one() {
    let v4 = std::net::SocketAddr::from(([127, 0, 0, 1], 80));
    let v6 = "[2001:db8::1]:11".parse().unwrap();
    let written = |version, ends| {
        let mut out = Vec::new();
        write(version, ends, false, &Extras::default(), &mut out);
        out
    };
    assert_eq!(written(1, Some((v6, v4))), b"PROXY TCP6 2001:db8::1 127.0.0.1 11 80\r\n");
    assert_eq!(written(1, Some((v4, v6))), b"PROXY TCP4 127.0.0.1 2001:db8::1 80 11\r\n");
    let addresses = |ends| {
        let (header, _) = done(&written(2, Some(ends)));
        let header = header.unwrap();
        [header.source, header.destination].map(|text| String::from_utf8(text).unwrap())
    };
    assert_eq!(addresses((v6, v4)), ["2001:db8::1", "::ffff:127.0.0.1"]);
    assert_eq!(addresses((v4, v6)), ["::ffff:127.0.0.1", "2001:db8::1"]);
    let other = "[::ffff:10.0.0.1]:5".parse().unwrap();
    assert_eq!(addresses((other, v4)), ["10.0.0.1", "127.0.0.1"]);
    // No client is named: command LOCAL.
    assert_eq!(written(2, None)[12..16], [0x20, 0, 0, 7]);
}
