use proptest::prelude::*;

use crate::http1::*;

/// Decodes `input` in pieces. Returns the body, the rest, and whether it was complete.
fn decode(
    decoder: &mut BodyDecoder,
    input: &[u8],
    piece: usize,
) -> Result<(Vec<u8>, Vec<u8>, bool), BodyError> {
    let (mut body, mut given, mut pos) = (Vec::new(), 0, 0);
    loop {
        let step = decoder.decode(&input[pos..given])?;
        body.extend_from_slice(&input[pos..given][step.data.clone()]);
        pos += step.consumed;
        if step.done {
            return Ok((body, input[pos..].to_vec(), true));
        }
        if step.data.is_empty() {
            assert_eq!(pos, given, "all bytes are taken when there is neither data nor the end");
            if given == input.len() {
                return Ok((body, Vec::new(), false));
            }
            given = (given + piece).min(input.len());
        }
    }
}

fn chunked(input: &str) -> Result<(String, String, bool), BodyError> {
    let mut results = [1, 2, 3, 1000].map(|piece| {
        let (body, rest, done) = decode(&mut BodyDecoder::chunked(), input.as_bytes(), piece)?;
        Ok((String::from_utf8(body).unwrap(), String::from_utf8(rest).unwrap(), done))
    });
    results.sort_by_key(|result: &Result<_, BodyError>| format!("{result:?}"));
    let [first, .., last] = results;
    assert_eq!(first, last, "pieces make no difference");
    first
}

#[test]
fn chunks() {
    let ok = |body: &str, rest: &str| Ok((body.to_owned(), rest.to_owned(), true));
    assert_eq!(chunked("5\r\nhello\r\n0\r\n\r\nrest"), ok("hello", "rest"));
    assert_eq!(chunked("1;a=b\r\nx\r\nA \t\r\n0123456789\r\n000;x\r\n\r\n"), ok("x0123456789", ""));
    assert_eq!(chunked("0\r\nA: b\r\nC: d\r\n\r\n"), ok("", ""));
    assert_eq!(chunked("5\r\nhel"), Ok(("hel".into(), String::new(), false)));
}

#[test]
fn chunks_that_two_servers_could_read_differently_are_refused() {
    for input in [
        "\r\n",
        "x\r\n",
        " 1\r\n",
        "1\n",
        "1\r\nx\n",
        "1\r\nxx\r\n",
        "1;\n",
        "1\rx",
        "0\n",
        "0;\n",
        "0\r\n\n",
        "0\r\nA\n",
        "0\r\n\rx",
        "-1\r\n",
        "0x1\r\n",
        "1,\r\n",
        "800000000000000\r\n",
        "7fffffffffffffff\r\n",
        "fffffffffffffffff",
    ] {
        assert_eq!(chunked(input), Err(BodyError::InvalidChunk), "{input:?}");
    }
    assert!(chunked("7ffffffffffffff\r\n").is_ok());
}

#[test]
fn bodies_of_known_length() {
    let mut decoder = BodyDecoder::length(5);
    assert_eq!(decoder.expected(), Some(5));
    let step = decoder.decode(b"hel").unwrap();
    assert_eq!((step.consumed, step.data, step.done), (3, 0..3, false));
    assert_eq!((decoder.data_left(), decoder.expected()), (2, Some(2)));
    let step = decoder.decode(b"lo, next").unwrap();
    assert_eq!((step.consumed, step.data, step.done), (2, 0..2, true));
    assert!(BodyDecoder::length(0).decode(b"next").unwrap().done);
}

#[test]
fn bodies_that_end_with_the_connection() {
    let mut decoder = BodyDecoder::until_close();
    let step = decoder.decode(b"hello").unwrap();
    assert_eq!((step.consumed, step.data, step.done), (5, 0..5, false));
    assert_eq!(decoder.expected(), None);
}

#[test]
fn trailers_are_kept() {
    let input = b"1\r\nx\r\n0\r\nA: b\r\nC:d \n\r\nrest";
    for piece in [1, 2, 5, 100] {
        let mut decoder = BodyDecoder::chunked_with_trailers(64);
        let (body, rest, done) = decode(&mut decoder, input, piece).unwrap();
        assert_eq!((&body[..], &rest[..], done), (&b"x"[..], &b"rest"[..], true));
        let (bytes, headers) = decoder.trailers().unwrap().headers();
        let pairs: Vec<_> = headers.iter().map(|h| (h.name.of(bytes), h.value.of(bytes))).collect();
        assert_eq!(pairs, [(&b"A"[..], &b"b"[..]), (b"C", b"d")]);
    }
}

#[test]
fn trailers_are_bounded_and_checked() {
    let with = |limit, input: &[u8]| {
        decode(&mut BodyDecoder::chunked_with_trailers(limit), input, 3).map(|_| ())
    };
    assert_eq!(with(8, b"0\r\nA: b\r\n\r\n"), Ok(()));
    assert_eq!(with(7, b"0\r\nA: b\r\n\r\n"), Err(BodyError::TrailersTooBig));
    let error = BodyError::InvalidTrailer { line: "A".into(), byte: b' ' };
    assert_eq!(with(64, b"0\r\nA b\r\n\r\n"), Err(error));
}

#[test]
fn framing_is_bounded() {
    let long = "x".repeat(40_000);
    for input in [format!("5;{long}\r\nhello\r\n0\r\n\r\n"), format!("0\r\nA: {long}\r\n\r\n")] {
        let mut decoder = BodyDecoder::chunked();
        assert_eq!(decode(&mut decoder, input.as_bytes(), 7), Err(BodyError::FramingTooBig));
        let mut decoder = BodyDecoder::chunked();
        let all = input.len();
        assert_eq!(decode(&mut decoder, input.as_bytes(), all), Err(BodyError::FramingTooBig));
    }
    // The framing of small chunks is within their allowance, and long chunks allow for long
    // extensions.
    let (few, much) = ("y".repeat(1000), "z".repeat(1000));
    let one = format!("3e8;{few}\r\n{much}\r\n");
    for input in ["1;a=b\r\nx\r\n".repeat(40_000), one.repeat(100)] {
        let mut decoder = BodyDecoder::chunked();
        let whole = format!("{input}0\r\n\r\n");
        let (_, _, done) = decode(&mut decoder, whole.as_bytes(), 4096).unwrap();
        assert!(done);
    }
}

#[test]
fn the_fewest_missing_bytes_are_known() {
    let expected = |input: &[u8]| {
        let mut decoder = BodyDecoder::chunked();
        decode(&mut decoder, input, 1).unwrap();
        decoder.expected()
    };
    assert_eq!(expected(b""), Some(5));
    assert_eq!(expected(b"a"), Some(2 + 10 + 7));
    assert_eq!(expected(b"a\r"), Some(1 + 10 + 7));
    assert_eq!(expected(b"a\r\n012"), Some(7 + 7));
    assert_eq!(expected(b"1\r\nx\r"), Some(6));
    assert_eq!(expected(b"0"), Some(4));
    assert_eq!(expected(b"0\r\n"), Some(2));
    assert_eq!(expected(b"0\r\n\r\n"), Some(0));
}

#[test]
fn chunk_heads_are_lower_case_and_without_zeros() {
    let head = |len| {
        let mut out = Vec::new();
        chunk_head(len, &mut out);
        String::from_utf8(out).unwrap()
    };
    assert_eq!(head(1), "1\r\n");
    assert_eq!(head(0xabc), "abc\r\n");
    assert_eq!(head(u64::MAX), "ffffffffffffffff\r\n");
    let mut out = Vec::new();
    last_chunk([(&b"A"[..], &b"b"[..])], &mut out);
    assert_eq!(out, b"0\r\nA: b\r\n\r\n");
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..8),
        piece in 1usize..50,
    ) {
        let mut wire = Vec::new();
        for chunk in &chunks {
            chunk_head(chunk.len() as u64, &mut wire);
            wire.extend_from_slice(chunk);
            chunk_end(&mut wire);
        }
        last_chunk([], &mut wire);
        wire.extend_from_slice(b"next");
        let (body, rest, done) = decode(&mut BodyDecoder::chunked(), &wire, piece).unwrap();
        prop_assert_eq!(body, chunks.concat());
        prop_assert_eq!((rest, done), (b"next".to_vec(), true));
    }

    #[test]
    fn any_bytes_are_decided(bytes: Vec<u8>, text in "[0-9a-f;\r\n:A ]{0,40}", piece in 1usize..9) {
        for input in [&bytes[..], text.as_bytes()] {
            for mut decoder in [BodyDecoder::chunked(), BodyDecoder::chunked_with_trailers(20)] {
                let _ = decode(&mut decoder, input, piece);
            }
        }
    }
}
