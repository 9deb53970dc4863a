//! The examples of RFC 7541 appendix C, and laws.

use proptest::prelude::*;

use super::*;

const LIMITS: FieldLimits = FieldLimits { field: 8192, block: 32768 };

type OwnedFields = Vec<(Vec<u8>, Vec<u8>)>;

fn read(decoder: &mut Decoder, block: &[u8]) -> Result<OwnedFields, BlockError> {
    let mut fields = Vec::new();
    decoder.decode(block, LIMITS, |name, value| fields.push((name.to_vec(), value.to_vec())))?;
    Ok(fields)
}

fn text(fields: &OwnedFields) -> String {
    let line = |(n, v): &(Vec<u8>, Vec<u8>)| {
        format!("{}={}", String::from_utf8_lossy(n), String::from_utf8_lossy(v))
    };
    fields.iter().map(line).collect::<Vec<_>>().join("|")
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pair = |p: &[u8]| u8::from_str_radix(std::str::from_utf8(p).unwrap(), 16).unwrap();
    digits.chunks(2).map(pair).collect()
}

#[test]
fn requests_of_the_rfc_in_the_huffman_code() {
    let mut decoder = Decoder::default();
    let first = read(&mut decoder, &bytes("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff")).unwrap();
    assert_eq!(text(&first), ":method=GET|:scheme=http|:path=/|:authority=www.example.com");
    let second = read(&mut decoder, &bytes("8286 84be 5886 a8eb 1064 9cbf")).unwrap();
    assert_eq!(
        text(&second),
        ":method=GET|:scheme=http|:path=/|:authority=www.example.com|cache-control=no-cache"
    );
    let third = "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf";
    let third = read(&mut decoder, &bytes(third)).unwrap();
    assert_eq!(
        text(&third),
        ":method=GET|:scheme=https|:path=/index.html|:authority=www.example.com|\
         custom-key=custom-value"
    );
}

#[test]
fn the_table_is_no_larger_than_its_setting() {
    let mut decoder = Decoder::with_table(0);
    assert_eq!(read(&mut decoder, b"\x20\x40\x01a\x01b\x88").unwrap().len(), 2);
    assert_eq!(read(&mut decoder, b"\xbe"), Err(BlockError::BadIndex(62)));
    assert_eq!(read(&mut decoder, b"\x21\x88"), Err(BlockError::BadTableSize(1)));
    assert!(read(&mut Decoder::with_table(1), b"\x21\x88").is_ok());
}

#[test]
fn old_entries_are_evicted() {
    let mut decoder = Decoder::default();
    // room for one field of 1 + 1 + 32 bytes
    read(&mut decoder, &bytes("3f03 40 0161 0162")).unwrap();
    assert_eq!(text(&read(&mut decoder, &bytes("be")).unwrap()), "a=b");
    read(&mut decoder, &bytes("40 0163 0164")).unwrap();
    assert_eq!(text(&read(&mut decoder, &bytes("be")).unwrap()), "c=d");
    assert_eq!(read(&mut decoder, &bytes("bf")), Err(BlockError::BadIndex(63)));
    // one that is too large empties the table
    read(&mut decoder, &bytes("40 0163 026465")).unwrap();
    assert_eq!(read(&mut decoder, &bytes("be")), Err(BlockError::BadIndex(62)));
}

#[test]
fn faults_of_a_block_are_reported() {
    let wrong = |hex: &str| read(&mut Decoder::default(), &bytes(hex)).unwrap_err();
    assert_eq!(wrong("80"), BlockError::BadIndex(0));
    assert_eq!(wrong("40"), BlockError::Truncated);
    assert_eq!(wrong("40 0161 0562"), BlockError::Truncated);
    assert_eq!(wrong("3fe21f"), BlockError::BadTableSize(4097));
    assert_eq!(wrong("8220"), BlockError::LateTableSize);
    assert_eq!(wrong("ffff ffff 7f"), BlockError::LongNumber);
    assert_eq!(wrong("00 00 00"), BlockError::EmptyName);
    assert_eq!(wrong("00 8100 00"), BlockError::BadCode);
}

#[test]
fn faults_of_an_incomplete_block_are_found() {
    let check_partial = |hex: &str| Decoder::check_partial(&bytes(hex));
    assert_eq!(check_partial(""), Ok(0));
    assert_eq!(check_partial("82 86 40 0161"), Ok(2));
    assert_eq!(check_partial("82 40 0161 0162 42"), Ok(6));
    assert_eq!(check_partial("ff ff ff"), Ok(0));
    assert_eq!(check_partial("82 ff ff ff ff"), Err(BlockError::LongNumber));
    assert_eq!(check_partial("42 ff ff ff ff"), Err(BlockError::LongNumber));
}

#[test]
fn fields_are_bounded() {
    let limits = FieldLimits { field: 4, block: 10 };
    let decode = |hex: &str| Decoder::default().decode(&bytes(hex), limits, |_, _| {});
    assert_eq!(decode("00 0161 0462626262 00 0161 0462626262"), Ok(()));
    assert_eq!(decode("00 0161 056262626262"), Err(BlockError::LargeField));
    // four bytes in the Huffman code, which are six of the text
    assert_eq!(decode("00 0161 84 1c71c71f"), Ok(()));
    assert_eq!(decode("82 82"), Err(BlockError::LargeBlock));
}

proptest! {
    #[test]
    fn what_was_written_is_read(
        fields in prop::collection::vec(("[a-z-]{1,20}", "[ -~]{0,200}"), 0..12),
        code in 100u16..600,
    ) {
        let mut block = Vec::new();
        status(code, &mut block);
        for (name, value) in &fields {
            field(name.to_ascii_uppercase().as_bytes(), value.as_bytes(), &mut block);
        }
        let read = read(&mut Decoder::default(), &block).unwrap();
        let mut expected = vec![(b":status".to_vec(), code.to_string().into_bytes())];
        expected.extend(fields.into_iter().map(|(n, v)| (n.into_bytes(), v.into_bytes())));
        prop_assert_eq!(read, expected);
    }

    #[test]
    fn any_bytes_are_read_or_refused(
        blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..8),
    ) {
        let mut decoder = Decoder::default();
        for block in blocks {
            let _ = read(&mut decoder, &block);
        }
    }
}
