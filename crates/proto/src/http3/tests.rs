//! Streams of a peer, in one chunk and in pieces.

use proptest::prelude::*;

use super::*;

const LARGEST: usize = 100;

/// Reads a request stream in pieces of so many bytes. Returns the sections, the body, and the result.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadRequest {
    pub(crate) sections: Vec<(bool, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
    pub(crate) error: Option<FrameError>,
}

pub(crate) fn read_request(role: Role, input: &[u8], piece: usize) -> ReadRequest {
    let (mut frames, mut read) = (RequestFrames::new(role, LARGEST), ReadRequest::default());
    let mut section = Vec::new();
    for chunk in input.chunks(piece) {
        let mut rest = chunk;
        loop {
            let (taken, part) = match frames.read(rest) {
                Ok(step) => step,
                Err(error) => return ReadRequest { error: Some(error), ..read },
            };
            match part {
                RequestPart::Nothing => {
                    assert_eq!(taken, rest.len());
                    break;
                }
                RequestPart::Fields { section: kind, piece, left } => {
                    assert_eq!(taken, piece.end);
                    section.extend_from_slice(&rest[piece]);
                    assert!(section.len() + left <= LARGEST);
                    if left == 0 {
                        let whole = std::mem::take(&mut section);
                        read.sections.push((kind == Section::Trailers, whole));
                    }
                }
                RequestPart::Data { piece, .. } => {
                    assert!(taken == piece.end && !piece.is_empty());
                    read.body.extend_from_slice(&rest[piece]);
                }
            }
            rest = &rest[taken..];
        }
    }
    read.error = frames.finish().err();
    read
}

/// Reads a control stream in pieces of so many bytes.
pub(crate) fn read_control(
    role: Role,
    input: &[u8],
    piece: usize,
) -> (Vec<ControlPart>, Option<FrameError>) {
    let (mut frames, mut parts) = (ControlFrames::new(role), Vec::new());
    for chunk in input.chunks(piece) {
        let mut rest = chunk;
        loop {
            match frames.read(rest) {
                Ok((taken, ControlPart::Nothing)) => {
                    assert_eq!(taken, rest.len());
                    break;
                }
                Ok((taken, part)) => {
                    parts.push(part);
                    rest = &rest[taken..];
                }
                Err(error) => return (parts, Some(error)),
            }
        }
    }
    (parts, None)
}

fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    varint::write(kind, &mut out);
    varint::write(payload.len() as u64, &mut out);
    out.extend_from_slice(payload);
    out
}

fn request(frames: &[(u64, &[u8])]) -> ReadRequest {
    let input: Vec<u8> = frames.iter().flat_map(|(kind, payload)| frame(*kind, payload)).collect();
    read_request(Role::Server, &input, usize::MAX)
}

fn control(role: Role, frames: &[(u64, &[u8])]) -> Result<Vec<ControlPart>, FrameError> {
    let input: Vec<u8> = frames.iter().flat_map(|(kind, payload)| frame(*kind, payload)).collect();
    let whole = read_control(role, &input, usize::MAX);
    assert_eq!(read_control(role, &input, 1), whole);
    whole.1.map_or(Ok(whole.0), Err)
}

const SETTINGS: (u64, &[u8]) = (4, b"");

#[test]
fn a_request_has_a_head_a_body_and_trailers() {
    let all = request(&[
        (0x21, b"grease"),
        (1, b"head"),
        (0, b"bo"),
        (0, b""),
        (0x40, b""),
        (0, b"dy"),
        (1, b"trailers"),
        (0x21, b""),
    ]);
    let sections = vec![(false, b"head".to_vec()), (true, b"trailers".to_vec())];
    assert_eq!(all, ReadRequest { sections, body: b"body".to_vec(), error: None });
    let sections = vec![(false, Vec::new())];
    assert_eq!(request(&[(1, b"")]), ReadRequest { sections, ..ReadRequest::default() });
}

#[test]
fn frames_of_a_request_have_an_order() {
    let error = |frames: &[(u64, &[u8])]| request(frames).error.unwrap();
    let unexpected = |kind: u64| FrameError::Unexpected(kind.into());
    assert_eq!(error(&[]), FrameError::NoHead);
    assert_eq!(error(&[(0x21, b"")]), FrameError::NoHead);
    assert_eq!(error(&[(0, b"body")]), unexpected(0));
    assert_eq!(error(&[(1, b"a"), (1, b"b"), (0, b"c")]), unexpected(0));
    assert_eq!(error(&[(1, b"a"), (1, b"b"), (1, b"c")]), unexpected(1));
    for kind in [2, 3, 4, 5, 6, 7, 8, 9, 0xd] {
        assert_eq!(error(&[(1, b"a"), (kind, b"\0")]), unexpected(kind));
        assert_eq!(error(&[(kind, b"\0")]).code(), ErrorCode::FrameUnexpected);
    }
    let large = [0; LARGEST + 1];
    assert_eq!(error(&[(1, &large)]), FrameError::LargeSection(LARGEST as u64 + 1));
}

#[test]
fn a_stream_ends_between_frames() {
    for cut in [1, 2, 5] {
        let bytes = [frame(1, b"head"), frame(0, b"body")].concat();
        let read = read_request(Role::Server, &bytes[..6 + cut], 1);
        assert_eq!(read.error, Some(FrameError::Truncated), "{cut}");
        assert_eq!(read.sections.len(), 1);
    }
    assert_eq!(read_request(Role::Server, b"\x01", 1).error, Some(FrameError::Truncated));
}

#[test]
fn an_interim_head_is_followed_by_another() {
    let mut frames = RequestFrames::new(Role::Client, LARGEST);
    for interim in [true, true, false] {
        let (taken, part) = frames.read(b"\x01\x01a").unwrap();
        assert_eq!(part, RequestPart::Fields { section: Section::Head, piece: 2..3, left: 0 });
        assert_eq!(taken, 3);
        if interim {
            frames.expect_another_head();
            assert_eq!(frames.finish(), Err(FrameError::NoHead));
        }
    }
    assert_eq!(frames.finish(), Ok(()));
    let push = FrameError::UnknownPush(FrameType::PushPromise);
    assert_eq!(frames.read(b"\x05\x01\x00"), Err(push));
}

#[test]
fn the_control_stream_begins_with_settings() {
    let missing = |kind: u64| Err(FrameError::MissingSettings(kind.into()));
    for kind in [0, 1, 2, 7, 0xd, 0x21] {
        assert_eq!(control(Role::Server, &[(kind, b"\0"), SETTINGS]), missing(kind));
    }
    let default = ControlPart::Settings(Settings::default());
    assert_eq!(control(Role::Server, &[SETTINGS, (0x21, b"abc")]), Ok(vec![default]));
    let twice = Err(FrameError::Unexpected(FrameType::Settings));
    assert_eq!(control(Role::Server, &[SETTINGS, SETTINGS]), twice);
    let large = [0; 4097];
    assert_eq!(control(Role::Server, &[(4, &large)]), Err(FrameError::LargeSettings(4097)));
}

#[test]
fn frames_of_the_control_stream_are_checked() {
    let after = |role: Role, frames: &[(u64, &[u8])]| {
        control(role, &[&[SETTINGS], frames].concat()).map(|parts| parts[1..].to_vec())
    };
    let server = |frames: &[(u64, &[u8])]| after(Role::Server, frames);
    let client = |frames: &[(u64, &[u8])]| after(Role::Client, frames);
    for kind in [0, 1, 2, 5, 6, 8, 9] {
        assert_eq!(server(&[(kind, b"")]), Err(FrameError::Unexpected(kind.into())));
    }
    let goaway = |id| ControlPart::Goaway(id);
    assert_eq!(
        server(&[(7, b"\x05"), (7, b"\x05"), (7, b"\x40\x01")]).unwrap(),
        [5, 5, 1].map(goaway)
    );
    assert_eq!(server(&[(7, b"\x01"), (7, b"\x02")]), Err(FrameError::HigherGoaway(2)));
    assert_eq!(client(&[(7, b"\x04")]).unwrap(), [goaway(4)]);
    assert_eq!(client(&[(7, b"\x05")]), Err(FrameError::GoawayStream(5)));
    assert_eq!(server(&[(0xd, b"\x05"), (0xd, b"\x05")]), Ok(vec![]));
    assert_eq!(server(&[(0xd, b"\x05"), (0xd, b"\x04")]), Err(FrameError::LowerPushLimit(4)));
    assert_eq!(client(&[(0xd, b"\x05")]), Err(FrameError::Unexpected(FrameType::MaxPushId)));
    assert_eq!(server(&[(3, b"\x00")]), Err(FrameError::UnknownPush(FrameType::CancelPush)));
    for wrong in [&b""[..], b"\x40", b"\x01\x01", &[0; 9]] {
        for kind in [3, 7, 0xd] {
            let error = FrameError::Length(u64::into(kind), wrong.len() as u64);
            assert_eq!(server(&[(kind, wrong)]), Err(error));
            assert_eq!(error.code(), ErrorCode::Frame);
        }
    }
}

#[test]
fn settings_are_checked() {
    let all = Settings {
        qpack_table: 4096,
        qpack_blocked: 100,
        field_section: Some(65_536),
        connect_protocol: true,
    };
    for settings in [all, Settings::default(), Settings { field_section: Some(0), ..all }] {
        let mut out = Vec::new();
        settings.write(&mut out);
        let read = read_control(Role::Client, &out, usize::MAX);
        assert_eq!(read, (vec![ControlPart::Settings(settings)], None));
    }
    assert_eq!(Settings::parse(b"\x21\x05\x33\x01\x40\x5f\x00"), Ok(Settings::default()));
    assert_eq!(Settings::parse(b"\x08\x02"), Err(SettingsError::BadValue(8, 2)));
    assert_eq!(Settings::parse(b"\x21\x05\x01\x01\x21\x06"), Err(SettingsError::Duplicate(0x21)));
    assert_eq!(Settings::parse(b"\x01"), Err(SettingsError::Truncated));
    assert_eq!(Settings::parse(b"\x01\x40"), Err(SettingsError::Truncated));
    for id in [0, 2, 3, 4, 5] {
        assert_eq!(Settings::parse(&[id, 0]), Err(SettingsError::Http2(id.into())));
    }
}

#[test]
fn what_is_written_is_read() {
    for len in [0, 3, 99] {
        let mut out = b"before".to_vec();
        let at = frame::leave_headers_head(&mut out);
        out.resize(out.len() + len, b'f');
        frame::finish_headers(&mut out, at);
        frame::write_data_head(70, &mut out);
        out.resize(out.len() + 70, b'd');
        let read = read_request(Role::Client, &out[6..], usize::MAX);
        assert_eq!(read.sections, [(false, vec![b'f'; len])]);
        assert_eq!((read.body, read.error), (vec![b'd'; 70], None));
    }
    let mut out = Vec::new();
    Settings::default().write(&mut out);
    frame::write_goaway(400, &mut out);
    let read = control_of(&out);
    assert_eq!(read, [ControlPart::Settings(Settings::default()), ControlPart::Goaway(400)]);
    let mut out = Vec::new();
    frame::write_stream_type(StreamType::QpackDecoder, &mut out);
    let number = varint::PartialVarint::default().read(&mut &out[..]).unwrap();
    assert_eq!(StreamType::from(number), StreamType::QpackDecoder);
}

fn control_of(bytes: &[u8]) -> Vec<ControlPart> {
    let (parts, error) = read_control(Role::Client, bytes, usize::MAX);
    assert_eq!(error, None);
    parts
}

#[test]
fn a_long_section_gets_a_long_head() {
    for len in [16_383usize, 16_384, 100_000] {
        let mut out = b"before".to_vec();
        let at = frame::leave_headers_head(&mut out);
        out.resize(out.len() + len, b'f');
        frame::finish_headers(&mut out, at);
        let mut frames = RequestFrames::new(Role::Client, usize::MAX);
        let (taken, part) = frames.read(&out[6..]).unwrap();
        assert_eq!(taken, out.len() - 6);
        let RequestPart::Fields { piece, left: 0, .. } = part else { panic!("{part:?}") };
        assert_eq!(piece.len(), len);
    }
}

proptest! {
    #[test]
    fn pieces_make_no_difference(
        frames in prop::collection::vec((
            prop_oneof![4 => 0u64..2, 2 => Just(0x21), 1 => Just(0x1234_5678), 1 => 0u64..16],
            prop::collection::vec(any::<u8>(), 0..120),
        ), 0..8),
        cut in 0usize..100,
        piece in 1usize..40,
    ) {
        let mut input = vec![];
        for (kind, payload) in &frames {
            input.extend(frame(*kind, payload));
        }
        input.truncate(input.len().saturating_sub(cut));
        let whole = read_request(Role::Server, &input, usize::MAX);
        prop_assert_eq!(read_request(Role::Server, &input, 1), ReadRequest { ..whole });
        let whole = read_request(Role::Client, &input, usize::MAX);
        prop_assert_eq!(read_request(Role::Client, &input, piece), whole);
        let input = [frame(4, b""), input].concat();
        let whole = read_control(Role::Server, &input, usize::MAX);
        prop_assert_eq!(read_control(Role::Server, &input, piece), whole);
    }
}
