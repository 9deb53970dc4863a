//! Inputs for the tests of encoders.

use proptest::prelude::*;

use super::Encoder;

/// What follows a piece of a body.
#[derive(Debug, Clone, Copy)]
pub enum After {
    Nothing,
    Pause,
    Flush,
}

/// Pieces of a body up to this length, some of which are followed by a pause or a flush.
pub fn pieces(longest: usize) -> impl Strategy<Value = Vec<(Vec<u8>, After)>> {
    let after = prop_oneof![Just(After::Nothing), Just(After::Pause), Just(After::Flush)];
    prop::collection::vec((prop::collection::vec(0u8..4, 0..longest), after), 0..5)
}

/// Encodes the pieces. Returns the output and the input.
pub fn coded(mut encoder: impl Encoder, pieces: Vec<(Vec<u8>, After)>) -> (Vec<u8>, Vec<u8>) {
    let (mut coded, mut plain) = (Vec::new(), Vec::new());
    for (piece, after) in pieces {
        encoder.write(&piece).unwrap();
        match after {
            After::Nothing => {}
            After::Pause => encoder.pause().unwrap(),
            After::Flush => encoder.flush().unwrap(),
        }
        coded.extend(encoder.take());
        plain.extend(piece);
    }
    encoder.finish().unwrap();
    coded.extend(encoder.take());
    (coded, plain)
}
