//! Streams of HTTP/3.

use crate::http3::qpack::tests::read_instructions;
use crate::http3::qpack::{Decoded, Decoder, FieldLimits};
use crate::http3::tests::{read_control, read_request};
use crate::http3::{Role, varint};

#[test]
fn request_streams() {
    bolero::check!().for_each(|input: &[u8]| {
        for role in [Role::Server, Role::Client] {
            let whole = read_request(role, input, usize::MAX);
            let fields: usize = whole.sections.iter().map(|(_, bytes)| bytes.len()).sum();
            assert!(fields + whole.body.len() <= input.len());
            for piece in [1, 7] {
                assert_eq!(read_request(role, input, piece), whole);
            }
        }
    });
}

#[test]
fn control_streams() {
    bolero::check!().for_each(|input: &[u8]| {
        for role in [Role::Server, Role::Client] {
            let whole = read_control(role, input, usize::MAX);
            for piece in [1, 7] {
                assert_eq!(read_control(role, input, piece), whole);
            }
        }
    });
}

#[test]
fn varints() {
    bolero::check!().for_each(|input: &[u8]| {
        let mut rest = input;
        let Some(number) = varint::take(&mut rest) else { return };
        let mut out = Vec::new();
        varint::write(number, &mut out);
        assert!(out.len() <= input.len() - rest.len());
        assert_eq!(varint::take(&mut &out[..]), Some(number));
    });
}

#[test]
fn qpack_instructions() {
    bolero::check!().for_each(|input: &[u8]| {
        let whole = read_instructions(input, usize::MAX);
        for piece in [1, 7] {
            assert_eq!(read_instructions(input, piece), whole);
        }
    });
}

/// An encoder's stream, its length first, and sections of one byte of length each.
#[test]
fn qpack_sections() {
    const LIMITS: FieldLimits = FieldLimits { field: 100, block: 1000 };
    bolero::check!().for_each(|input: &[u8]| {
        let Some((&len, rest)) = input.split_first() else { return };
        let Some((instructions, mut rest)) = rest.split_at_checked(usize::from(len)) else {
            return;
        };
        let (mut decoder, mut waiting) = (Decoder::new(300, 2), Vec::new());
        while let Some((&len, behind)) = rest.split_first() {
            let Some((section, behind)) = behind.split_at_checked(usize::from(len)) else { break };
            let stream = behind.len() as u64;
            let mut left = LIMITS.block;
            let decoded = decoder.decode(stream, section, LIMITS, |name, value| {
                assert!(!name.is_empty() && name.len().max(value.len()) <= LIMITS.field);
                left -= name.len() + value.len();
            });
            if let Ok(Decoded::Blocked(required)) = decoded {
                assert!(required > 0 && left == LIMITS.block);
                waiting.push((stream, section));
            }
            rest = behind;
        }
        assert!(waiting.len() <= 2);
        let _ = decoder.read_encoder(instructions);
        while let Some(ready) = decoder.next_unblocked() {
            let at = waiting.iter().position(|(stream, _)| *stream == ready).expect("it waits");
            let (_, section) = waiting.remove(at);
            let decoded = decoder.decode(ready, section, LIMITS, |_, _| {});
            // Insertions beyond what the table holds make the count of a section that waits another one: RFC 9204, section 4.5.1.1.
            if let Ok(Decoded::Blocked(_)) = decoded {
                waiting.push((ready, section));
            }
        }
        assert!(waiting.len() <= 2);
    });
}
