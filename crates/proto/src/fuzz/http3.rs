//! Streams of HTTP/3.

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
