//! Chunked bodies.

use crate::http1::{BodyDecoder, BodyError, chunk_end, chunk_head, last_chunk};

/// What a body came to.
#[derive(Debug, PartialEq, Eq)]
struct ReadBody {
    data: Vec<u8>,
    trailers: Vec<(Vec<u8>, Vec<u8>)>,
    /// How many bytes belong to the body, if it ended.
    end: Option<usize>,
    error: Option<BodyError>,
}

/// Reads a body that comes in pieces of `piece` bytes.
fn read(mut decoder: BodyDecoder, input: &[u8], piece: usize) -> ReadBody {
    let mut read = ReadBody { data: Vec::new(), trailers: Vec::new(), end: None, error: None };
    let (mut at, mut received) = (0, 0);
    let mut promised = 0;
    while read.end.is_none() {
        let step = match decoder.decode(&input[at..received]) {
            Ok(step) => step,
            Err(e) => {
                read.error = Some(e);
                break;
            }
        };
        read.data.extend_from_slice(&input[at..received][step.data.clone()]);
        at += step.consumed;
        promised = promised.max(at as u64 + decoder.expected().unwrap_or(0));
        if step.done {
            read.end = Some(at);
        } else if step.data.is_empty() {
            if received == input.len() {
                break;
            }
            received = input.len().min(received + piece);
        }
    }
    if let (Some(end), Some(trailers)) = (read.end, decoder.trailers()) {
        assert!(promised <= end as u64, "more was expected than came");
        let (bytes, headers) = trailers.headers();
        let pair =
            |h: &crate::http1::HeaderLine| (h.name.of(bytes).to_vec(), h.value.of(bytes).to_vec());
        read.trailers = headers.iter().map(pair).collect();
    }
    read
}

#[test]
fn chunked() {
    bolero::check!().for_each(|input: &[u8]| {
        let keeping = || BodyDecoder::chunked_with_trailers(64);
        let whole = read(keeping(), input, input.len().max(1));
        for piece in [1, 7] {
            assert_eq!(whole, read(keeping(), input, piece));
        }
        let dropping = read(BodyDecoder::chunked(), input, input.len().max(1));
        assert_eq!(dropping, read(BodyDecoder::chunked(), input, 1));
        if let (Some(end), Some(other)) = (whole.end, dropping.end) {
            assert_eq!((end, &whole.data), (other, &dropping.data));
        }
    });
}

#[test]
fn chunks_written_are_read() {
    bolero::check!().for_each(|input: &[u8]| {
        let mut body = Vec::new();
        for chunk in input.chunks(100) {
            chunk_head(chunk.len() as u64, &mut body);
            body.extend_from_slice(chunk);
            chunk_end(&mut body);
        }
        last_chunk([(&b"X-Sum"[..], &b"1"[..])], &mut body);
        let read = read(BodyDecoder::chunked_with_trailers(64), &body, 33);
        assert_eq!((read.data.as_slice(), read.end), (input, Some(body.len())));
        assert_eq!(read.trailers, [(b"X-Sum".to_vec(), b"1".to_vec())]);
    });
}
