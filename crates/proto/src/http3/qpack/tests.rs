//! The examples of RFC 9204, appendix B, sections of another implementation, and properties.

use proptest::prelude::*;

use super::*;
use crate::compression::{write_number, write_string};

const LIMITS: FieldLimits = FieldLimits { field: 8192, block: 32768 };

fn read(decoder: &mut Decoder, stream: u64, section: &[u8]) -> (String, Decoded) {
    let mut fields = Vec::new();
    let take = |name: &[u8], value: &[u8]| {
        let (name, value) = (String::from_utf8_lossy(name), String::from_utf8_lossy(value));
        fields.push(format!("{name}={value}"));
    };
    let decoded = decoder.decode(stream, section, LIMITS, take).unwrap();
    (fields.join("|"), decoded)
}

fn text(decoder: &mut Decoder, stream: u64, hex: &str) -> String {
    let (text, decoded) = read(decoder, stream, &bytes(hex));
    assert_eq!(decoded, Decoded::Whole);
    text
}

fn feedback(decoder: &mut Decoder) -> Vec<u8> {
    let mut out = Vec::new();
    decoder.write_feedback(&mut out);
    out
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pair = |p: &[u8]| u8::from_str_radix(std::str::from_utf8(p).unwrap(), 16).unwrap();
    digits.chunks(2).map(pair).collect()
}

#[test]
fn the_examples_of_the_rfc() {
    let mut decoder = Decoder::new(220, 8);
    // B.1: a literal with the name of the static table
    let first = text(&mut decoder, 0, "0000 510b 2f69 6e64 6578 2e68 746d 6c");
    assert_eq!(first, ":path=/index.html");
    assert_eq!(feedback(&mut decoder), b"");
    // B.2: the section comes before the entries
    let section = bytes("0381 1011");
    assert_eq!(read(&mut decoder, 4, &section), (String::new(), Decoded::Blocked(2)));
    assert_eq!(decoder.next_unblocked(), None);
    decoder.read_encoder(&bytes("3fbd01 c00f 7777 772e 6578 616d 706c 652e 636f 6d")).unwrap();
    assert_eq!(read(&mut decoder, 4, &section), (String::new(), Decoded::Blocked(2)));
    decoder.read_encoder(&bytes("c10c 2f73 616d 706c 652f 7061 7468")).unwrap();
    assert_eq!(decoder.next_unblocked(), Some(4));
    assert_eq!(decoder.next_unblocked(), None);
    let second = text(&mut decoder, 4, "0381 1011");
    assert_eq!(second, ":authority=www.example.com|:path=/sample/path");
    assert_eq!(feedback(&mut decoder), b"\x84");
    // B.3: an entry that no section needs yet
    let entry = "4a63 7573 746f 6d2d 6b65 790c 6375 7374 6f6d 2d76 616c 7565";
    decoder.read_encoder(&bytes(entry)).unwrap();
    assert_eq!(feedback(&mut decoder), b"\x01");
    // B.4: an entry is repeated, and the section is cancelled before the entry comes
    assert_eq!(read(&mut decoder, 8, &bytes("0500 80c1 81")).1, Decoded::Blocked(4));
    decoder.cancel(8);
    assert_eq!(feedback(&mut decoder), b"\x48");
    decoder.read_encoder(b"\x02").unwrap();
    assert_eq!(decoder.next_unblocked(), None);
    let fourth = text(&mut decoder, 12, "0500 80c1 81");
    assert_eq!(fourth, ":authority=www.example.com|:path=/|custom-key=custom-value");
    assert_eq!(feedback(&mut decoder), b"\x8c");
    // B.5: the oldest entry makes room
    decoder.read_encoder(&bytes("810d 6375 7374 6f6d 2d76 616c 7565 32")).unwrap();
    assert_eq!(text(&mut decoder, 16, "0600 80"), "custom-key=custom-value2");
    let gone = decoder.decode(20, &bytes("0600 84"), LIMITS, |_, _| {});
    assert_eq!(gone, Err(QpackFault::BadIndex(0).of_section()));
    assert_eq!(feedback(&mut decoder), b"\x90\x54");
}

#[test]
fn faults_of_a_section_are_reported() {
    let wrong = |hex: &str| {
        let mut decoder = Decoder::new(4096, 1);
        // a=b and c=d
        decoder.read_encoder(&bytes("3fe11f 41 61 01 62 41 63 01 64")).unwrap();
        let error = decoder.decode(0, &bytes(hex), LIMITS, |_, _| {}).unwrap_err();
        assert_eq!(error.code, ErrorCode::QpackDecompressionFailed);
        error.fault
    };
    assert_eq!(wrong(""), QpackFault::Truncated);
    assert_eq!(wrong("00"), QpackFault::Truncated);
    assert_eq!(wrong("0000 51"), QpackFault::Truncated);
    assert_eq!(wrong("0000 5105 2f"), QpackFault::Truncated);
    assert_eq!(wrong("0000 ff24"), QpackFault::BadIndex(99));
    assert_eq!(wrong("0000 ff ffff ffff ffff ffff 7f"), QpackFault::LongNumber);
    assert_eq!(wrong("0000 80"), QpackFault::BadIndex(0));
    assert_eq!(wrong("0000 10"), QpackFault::BadIndex(0));
    // the second entry, though only one was said to be needed
    assert_eq!(wrong("0201 80"), QpackFault::BadIndex(0));
    assert_eq!(wrong("0200 10"), QpackFault::BadIndex(0));
    assert_eq!(wrong("0281 10"), QpackFault::BadBase);
    assert_eq!(wrong("ff02 00 80"), QpackFault::BadInsertCount(257));
    // 130 entries, or none
    assert_eq!(wrong("8400"), QpackFault::BadInsertCount(132));
    assert_eq!(wrong("0100"), QpackFault::BadInsertCount(1));
    assert_eq!(wrong("0000 2161 02 61"), QpackFault::Truncated);
    assert_eq!(wrong("0000 51 8100"), QpackFault::BadCode);
}

#[test]
fn faults_of_an_instruction_are_reported() {
    let wrong = |hex: &str| {
        let error = Decoder::new(100, 1).read_encoder(&bytes(hex)).unwrap_err();
        assert_eq!(error.code, ErrorCode::QpackEncoderStream);
        error.fault
    };
    assert_eq!(wrong("3f46"), QpackFault::BadCapacity(101));
    assert_eq!(wrong("3f45 80 00"), QpackFault::BadIndex(0));
    assert_eq!(wrong("3f45 00"), QpackFault::BadIndex(0));
    assert_eq!(wrong("3f45 ff24 00"), QpackFault::BadIndex(99));
    // no room before the capacity was set, and then for 32 + 69 bytes
    assert_eq!(wrong("41 61 00"), QpackFault::LargeEntry);
    assert_eq!(wrong(&format!("3f45 41 61 44 {}", "62".repeat(68))), QpackFault::LargeEntry);
    // what will be too large is not waited for
    assert_eq!(wrong("3f45 41 61 66"), QpackFault::LargeEntry);
    assert_eq!(wrong("3f45 ffff ffff ffff ffff ffff"), QpackFault::LongNumber);
    let mut decoder = Decoder::new(100, 1);
    decoder.read_encoder(&bytes(&format!("3f45 41 61 43 {}", "62".repeat(67)))).unwrap();
    // an entry that no request could use
    let mut decoder = Decoder::new(100, 1).with_largest_field(4);
    decoder.read_encoder(&bytes("3f45 44 61616161 04 62626262")).unwrap();
    for large in ["41 61 05 6262626262", "45 6161616161 00"] {
        let error = decoder.read_encoder(&bytes(large)).unwrap_err();
        assert_eq!((error.fault, error.code), (QpackFault::LargeField, ErrorCode::ExcessiveLoad));
    }
}

#[test]
fn few_streams_may_wait() {
    let mut decoder = Decoder::new(4096, 2);
    for stream in [0, 4, 0, 4] {
        assert_eq!(read(&mut decoder, stream, b"\x02\x00\x80").1, Decoded::Blocked(1));
    }
    let error = decoder.decode(8, b"\x02\x00\x80", LIMITS, |_, _| {}).unwrap_err();
    assert_eq!(error.fault, QpackFault::ManyBlocked);
    decoder.cancel(4);
    assert_eq!(read(&mut decoder, 8, b"\x03\x00\x80").1, Decoded::Blocked(2));
    decoder.read_encoder(&bytes("3fe11f 41 61 01 62")).unwrap();
    assert_eq!((decoder.next_unblocked(), decoder.next_unblocked()), (Some(0), None));
    assert_eq!(text(&mut decoder, 0, "0200 80"), "a=b");
    decoder.read_encoder(&bytes("41 63 01 64")).unwrap();
    assert_eq!(text(&mut decoder, 8, "0300 80"), "c=d");
    assert_eq!(decoder.next_unblocked(), None);
    assert_eq!(feedback(&mut decoder), b"\x48\x44\x80\x88");
}

#[test]
fn without_a_table_no_instructions_are_written() {
    let mut decoder = Decoder::new(0, 0);
    assert!(decoder.decode(0, b"\x02\x00\x80", LIMITS, |_, _| {}).is_err());
    decoder.cancel(0);
    decoder.read_encoder(b"\x20").unwrap();
    assert!(decoder.read_encoder(b"\x21").is_err());
    assert_eq!(feedback(&mut decoder), b"");
}

#[test]
fn fields_are_bounded() {
    let limits = FieldLimits { field: 4, block: 10 };
    let mut decoder = Decoder::new(4096, 0);
    let mut decode = |hex: &str| decoder.decode(0, &bytes(hex), limits, |_, _| {}).unwrap();
    assert_eq!(decode("0000 2161 0462626262 2161 0462626262"), Decoded::Whole);
    assert_eq!(decode("0000 2161 0462626262 2161 0462626262 c1"), Decoded::TooLarge);
    assert_eq!(decode("0000 2161 056262626262"), Decoded::TooLarge);
    assert_eq!(decode("0000 256161616161 00"), Decoded::TooLarge);
    // four bytes in the Huffman code, which are six of the text
    assert_eq!(decode("0000 2161 84 1c71c71f"), Decoded::Whole);
    assert_eq!(decode("0000 2161 85 1c71c71c7f"), Decoded::TooLarge);
    assert_eq!(decode("0000 c0 c0"), Decoded::TooLarge);
    // nothing counts but names and values
    assert_eq!(decode("0000 2161 00 2161 00 2161 00 2161 00"), Decoded::Whole);
    // the entry is released all the same
    decoder.read_encoder(&bytes("3fe11f 41 61 05 6262626262")).unwrap();
    let large = decoder.decode(4, &bytes("0200 80 80"), limits, |_, _| {});
    assert_eq!(large, Ok(Decoded::TooLarge));
    assert_eq!(feedback(&mut decoder), b"\x84");
}

#[test]
fn only_cancellations_are_expected_without_a_table() {
    let mut peer = EncoderFeedback::default();
    peer.read(b"\x44\x7f").unwrap();
    peer.read(b"\x80").unwrap();
    peer.read(b"\x01\x40").unwrap();
    for wrong in [b"\x84", b"\xc4", b"\x01", b"\x00"] {
        let error = EncoderFeedback::default().read(wrong).unwrap_err();
        assert_eq!(error.code, ErrorCode::QpackDecoderStream);
    }
}

/// Output of ls-qpack, by pylsqpack 1.0: a line `table CAPACITY` begins a connection, `encoder HEX` are bytes of its encoder
/// stream, `STREAM HEX` is a section, and `> NAME: VALUE` a field of it.
const FOREIGN: &str = include_str!("tests/ls-qpack");

/// Decodes the sections of another implementation. Their entries arrive before them or, if `late`, after each.
fn read_foreign(late: bool) -> (usize, usize) {
    let (mut sections, mut waited) = (0, 0);
    for connection in FOREIGN.split("table ").skip(1) {
        let (capacity, rest) = connection.split_once('\n').unwrap();
        let mut decoder = Decoder::new(capacity.parse().unwrap(), 1);
        let (mut entries, mut lines) = (Vec::new(), rest.lines().peekable());
        while let Some(line) = lines.next() {
            let (which, hex) = line.split_once(' ').unwrap();
            if which == "encoder" {
                entries.extend(bytes(hex));
                continue;
            }
            let (stream, section) = (which.parse().unwrap(), bytes(hex));
            let fields = std::iter::from_fn(|| lines.next_if(|line| line.starts_with("> ")));
            let fields: Vec<_> = fields.map(|field| field[2..].replacen(": ", "=", 1)).collect();
            let waits =
                late && matches!(read(&mut decoder, stream, &section).1, Decoded::Blocked(_));
            waited += usize::from(waits);
            for byte in entries.drain(..) {
                decoder.read_encoder(&[byte]).unwrap();
            }
            assert_eq!(decoder.next_unblocked(), waits.then_some(stream));
            sections += 1;
            assert_eq!(read(&mut decoder, stream, &section), (fields.join("|"), Decoded::Whole));
        }
    }
    (sections, waited)
}

#[test]
fn sections_of_another_implementation_are_read() {
    let (sections, waited) = read_foreign(false);
    assert!(sections > 40 && waited == 0);
    let (_, waited) = read_foreign(true);
    assert!(waited > 20, "{waited}");
}

/// Reads an encoder stream in pieces of so many bytes.
pub(crate) fn read_instructions(input: &[u8], piece: usize) -> (String, Option<QpackError>) {
    let mut decoder = Decoder::new(300, 4);
    let mut error = None;
    for piece in input.chunks(piece) {
        error = decoder.read_encoder(piece).err();
        if error.is_some() {
            break;
        }
    }
    let told = feedback(&mut decoder);
    // All that the table has now.
    let mut entries = String::new();
    // One entry of 9 is needed at least; the count is sent modulo 18.
    for (required, index) in (1..19).flat_map(|required| (0..9).map(move |index| (required, index)))
    {
        let section = [required, 0, 0x80 | index];
        let _ = decoder.decode(0, &section, LIMITS, |name, value| {
            entries.push_str(&format!("{required}-{index} {name:?}={value:?}|"));
        });
    }
    (format!("{told:?} {entries}"), error)
}

proptest! {
    #[test]
    fn what_was_written_is_read(
        fields in prop::collection::vec(("[a-z-]{1,20}", "[ -~]{0,200}"), 0..12),
        code in 100u16..600,
    ) {
        let mut section = Vec::new();
        begin_section(&mut section);
        status(code, &mut section);
        for (name, value) in &fields {
            field(name.to_ascii_uppercase().as_bytes(), value.as_bytes(), &mut section);
        }
        let expected = std::iter::once(format!(":status={code}"));
        let expected = expected.chain(fields.iter().map(|(name, value)| format!("{name}={value}")));
        let expected = expected.collect::<Vec<_>>().join("|");
        let mut decoder = Decoder::new(0, 0);
        prop_assert_eq!(read(&mut decoder, 0, &section), (expected, Decoded::Whole));
        for cut in 2..section.len() {
            let _ = decoder.decode(0, &section[..cut], LIMITS, |_, _| {});
        }
    }

    #[test]
    fn pieces_of_instructions_make_no_difference(
        instructions in prop::collection::vec(prop_oneof![
            2 => (0u64..310).prop_map(|size| number(0x20, 5, size)),
            5 => ("[a-z]{0,40}", "[ -~]{0,60}").prop_map(|(name, value)| {
                let mut out = Vec::new();
                write_string(0x40, 5, name.as_bytes(), &mut out);
                write_string(0, 7, value.as_bytes(), &mut out);
                out
            }),
            2 => (0u64..110, "[ -~]{0,60}").prop_map(|(index, value)| {
                let mut out = number(if index > 99 { 0x80 } else { 0xc0 }, 6, index % 100);
                write_string(0, 7, value.as_bytes(), &mut out);
                out
            }),
            1 => (0u64..4).prop_map(|index| number(0, 5, index)),
            1 => prop::collection::vec(any::<u8>(), 0..8),
        ], 0..12),
        piece in 1usize..20,
    ) {
        let input = [number(0x20, 5, 300), instructions.concat()].concat();
        prop_assert_eq!(read_instructions(&input, piece), read_instructions(&input, usize::MAX));
    }
}

fn number(high: u8, prefix: u32, number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    write_number(high, prefix, number, &mut out);
    out
}
