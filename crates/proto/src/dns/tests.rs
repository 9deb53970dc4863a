use super::*;

use proptest::prelude::*;

/// Turns a query into an answer with records of the given types, classes and data.
fn answer(query: &[u8], flags: u16, records: &[(u16, u16, &[u8])]) -> Vec<u8> {
    let mut message = query.to_vec();
    message[2..4].copy_from_slice(&(RESPONSE | flags).to_be_bytes());
    message[6..8].copy_from_slice(&(records.len() as u16).to_be_bytes());
    for (kind, class, data) in records {
        message.extend_from_slice(&[0xc0, HEAD as u8]);
        message.extend_from_slice(&kind.to_be_bytes());
        message.extend_from_slice(&class.to_be_bytes());
        message.extend_from_slice(&300u32.to_be_bytes());
        message.extend_from_slice(&(data.len() as u16).to_be_bytes());
        message.extend_from_slice(data);
    }
    message
}

fn asked(name: &str, kind: QueryType) -> Vec<u8> {
    let mut out = Vec::new();
    query(7, name, kind, &mut out).unwrap();
    out
}

#[test]
fn a_query_has_one_question() {
    let out = asked("a.Example.", QueryType::Aaaa);
    assert_eq!(&out[..HEAD], [0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(&out[HEAD..], b"\x01a\x07Example\x00\x00\x1c\x00\x01");
}

#[test]
fn names_that_cannot_be_asked_for() {
    for name in ["", ".", "a..b", &"x".repeat(64), &"x.".repeat(200)] {
        let mut out = vec![1];
        assert_eq!(query(1, name, QueryType::A, &mut out), Err(BadName), "{name}");
        assert_eq!(out, [1]);
    }
}

#[test]
fn addresses_and_other_names_are_read() {
    let cname = [b"\x03www".as_slice(), &[0xc0, HEAD as u8]].concat();
    let srv = [b"\0\x01\0\x02\0\x50\x01s".as_slice(), &[0xc0, HEAD as u8]].concat();
    let message = answer(
        &asked("a.Example", QueryType::A),
        0,
        &[
            (1, 1, &[127, 0, 0, 1]),
            (5, 1, &cname),
            (33, 1, &srv),
            (1, 3, &[1, 1, 1, 1]),
            (16, 1, b"x"),
        ],
    );
    let parsed = parse(&message).unwrap();
    assert_eq!((parsed.id, parsed.code, parsed.truncated), (7, 0, false));
    assert_eq!((parsed.name.as_str(), parsed.kind), ("a.example", 1));
    let data: Vec<Data> = parsed.records.into_iter().map(|r| r.data).collect();
    let target = "s.a.example".to_owned();
    assert_eq!(
        data,
        [
            Data::A(Ipv4Addr::LOCALHOST),
            Data::Cname("www.a.example".to_owned()),
            Data::Srv { priority: 1, weight: 2, port: 80, target },
            Data::Other,
        ]
    );
}

#[test]
fn references_in_a_circle_are_refused() {
    let mut message = answer(&asked("a", QueryType::A), 0, &[(5, 1, b"\xc0\x00")]);
    let len = message.len();
    message[len - 1] = (len - 2) as u8;
    assert_eq!(parse(&message), Err(Malformed));
}

/// Each name of an answer over TCP could have thousands.
#[test]
fn a_name_has_as_many_references_as_labels() {
    let with = |references: usize| {
        let mut message = answer(&asked("a", QueryType::A), 0, &[]);
        let begin = message.len() + 12;
        let chain = (0..references).flat_map(|n| {
            let to = if n == 0 { HEAD } else { begin + 2 * (n - 1) };
            (0xc000 | to as u16).to_be_bytes()
        });
        let chain: Vec<u8> = chain.collect();
        let last = (0xc000 | (begin + 2 * (references - 1)) as u16).to_be_bytes();
        message[7] = 2;
        for (kind, data) in [(16u16, &chain[..]), (5, &last[..])] {
            message.extend_from_slice(&[0xc0, HEAD as u8]);
            message.extend_from_slice(&kind.to_be_bytes());
            message.extend_from_slice(&[0, 1, 0, 0, 0, 9]);
            message.extend_from_slice(&(data.len() as u16).to_be_bytes());
            message.extend_from_slice(data);
        }
        parse(&message).map(|message| message.records[1].data.clone())
    };
    assert_eq!(with(REFERENCES - 1), Ok(Data::Cname("a".to_owned())));
    assert_eq!(with(REFERENCES), Err(Malformed));
}

#[test]
fn a_name_that_is_no_text_spoils_no_other_record() {
    let odd: &[u8] = b"\x02\xff\x01\0";
    let srv = [b"\0\x01\0\x02\0\x50", odd].concat();
    let records = [(5, 1, odd), (12, 1, odd), (33, 1, &srv), (1, 1, &[127, 0, 0, 1][..])];
    let mut message = answer(&asked("a", QueryType::A), 0, &records);
    // A record of such a name.
    message.extend_from_slice(odd);
    message.extend_from_slice(&[0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 127, 0, 0, 2]);
    message[7] += 1;
    let data: Vec<Data> = parse(&message).unwrap().records.into_iter().map(|r| r.data).collect();
    let [one, two] = [1, 2].map(|n| Data::A(Ipv4Addr::new(127, 0, 0, n)));
    assert_eq!(data, [Data::Other, Data::Other, Data::Other, one, two]);
}

#[test]
fn a_truncated_answer_says_so() {
    let whole = answer(&asked("a", QueryType::A), TRUNCATED, &[(1, 1, &[127, 0, 0, 1])]);
    assert!(parse(&whole[..whole.len() - 2]).unwrap().truncated);
}

proptest! {
    #[test]
    fn no_bytes_cause_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&bytes);
    }

    #[test]
    fn no_change_of_an_answer_causes_a_panic(at in 0usize..60, byte in any::<u8>()) {
        let mut message = answer(&asked("a.b", QueryType::A), 0, &[(1, 1, &[127, 0, 0, 1]), (5, 1, b"\x01x\0")]);
        let at = at % message.len();
        message[at] = byte;
        let _ = parse(&message);
    }
}

#[test]
fn the_name_of_an_address_is_asked_for_backwards() {
    assert_eq!(reverse("192.0.2.10".parse().unwrap()), "10.2.0.192.in-addr.arpa");
    let name = reverse("2001:db8::1".parse().unwrap());
    assert!(name.starts_with("1.0.0.0.") && name.ends_with(".8.b.d.0.1.0.0.2.ip6.arpa"), "{name}");
    assert_eq!(name.split('.').count(), 34);
}
