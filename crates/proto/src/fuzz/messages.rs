//! Messages of peers: answers of name servers, FastCGI responders, memcached and collectors of traces, PROXY headers,
//! MP4 tables.

use crate::client_hello;
use crate::dns::{self, Data, QueryType};
use crate::fastcgi::{RecordError, RecordPart, Records};
use crate::mail::{self, ImapProgress, LineProgress};
use crate::memcached;
use crate::mp4::{self, FileLayout, TimeSpan};
use crate::otlp;
use crate::proxy_protocol::{self, ProxyProgress};

/// What `dns` lets pass: see its `NAME_MAX`.
const LONGEST_NAME: usize = 255;

#[test]
fn dns_answer() {
    bolero::check!().for_each(|input: &[u8]| {
        let Ok(message) = dns::parse(input) else { return };
        assert!(message.name.len() <= LONGEST_NAME);
        for record in &message.records {
            assert!(record.name.len() <= LONGEST_NAME);
            if let Data::Cname(name) | Data::Srv { target: name, .. } = &record.data {
                assert!(name.len() <= LONGEST_NAME);
            }
        }
    });
}

#[test]
fn dns_query() {
    bolero::check!().for_each(|input: &[u8]| {
        let Ok(name) = std::str::from_utf8(input) else { return };
        let mut message = Vec::new();
        if dns::query(7, name, QueryType::Srv, &mut message).is_err() {
            assert!(message.is_empty());
            return;
        }
        // A server that knows nothing sends the question back.
        message[2] |= 0x80;
        let answer = dns::parse(&message).expect("a question is a whole message");
        let asked = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        assert_eq!((answer.id, answer.name, answer.kind), (7, asked, QueryType::Srv as u16));
    });
}

#[test]
fn mail_command() {
    bolero::check!().for_each(|input: &[u8]| {
        let decided = |end: usize| match mail::imap(&input[..end], 2) {
            ImapProgress::More => None,
            other => Some(other),
        };
        let whole = decided(input.len());
        // What is decided stays so, whatever follows.
        if let Some(first) = (0..input.len()).find_map(decided) {
            assert_eq!(whole.as_ref(), Some(&first));
        }
        if let Some(ImapProgress::Command { len, .. } | ImapProgress::Invalid { len, .. }) = whole {
            assert_eq!(input[len - 1], b'\n');
        }
        let lengths = [
            match mail::pop3(input) {
                LineProgress::Command { len, .. } | LineProgress::Invalid { len } => Some(len),
                LineProgress::More => None,
            },
            match mail::smtp(input) {
                LineProgress::Command { len, .. } | LineProgress::Invalid { len } => Some(len),
                LineProgress::More => None,
            },
            match mail::answer(input) {
                LineProgress::Command { len, .. } | LineProgress::Invalid { len } => Some(len),
                LineProgress::More => None,
            },
        ];
        // All end with the first line.
        let line = input.iter().position(|b| *b == b'\n').map(|at| at + 1);
        assert_eq!(lengths, [line; 3]);
    });
}

#[test]
fn proxy_header() {
    bolero::check!().for_each(|input: &[u8]| {
        let whole = proxy_protocol::parse(input);
        for end in 0..input.len() {
            match proxy_protocol::parse(&input[..end]) {
                Ok(ProxyProgress::More) => {}
                // What is decided stays so, whatever follows.
                Ok(done) => assert_eq!(whole.as_ref(), Ok(&done)),
                Err(_) => assert!(whole.is_err()),
            }
        }
        let Ok(ProxyProgress::Done { header, len }) = whole else { return };
        assert!(len <= input.len());
        for name in ["alpn", "ssl", "ssl_cn", "ssl_verify", "0x04", "ssl_0x24", "x", "0x"] {
            let _ = header.as_ref().map(|header| header.tlv(name.as_bytes()));
        }
    });
}

#[test]
fn collectors_answer() {
    bolero::check!().for_each(|input: &[u8]| {
        let Some(partly) = otlp::partly(input) else { return };
        // What is no UTF-8 is replaced by letters of three bytes.
        assert!(partly.why.len() <= 3 * input.len());
    });
}

#[test]
fn mp4_tables() {
    bolero::check!().for_each(|input: &[u8]| {
        let _ = mp4::header(input, input.len() as u64);
        let place = FileLayout { end: 5000, before: 24, data: 1000..5000 };
        for (start, length) in [(0, 1000), (1500, 0), (2000, 2000), (u64::MAX, u64::MAX)] {
            for key_frame in [false, true] {
                let wanted = TimeSpan { start, length, key_frame };
                let Ok(cut) = mp4::cut(input, &place, wanted) else { continue };
                assert!(cut.data.start < cut.data.end && cut.data.end <= place.end);
                assert!(cut.head.len() <= input.len() + 1024, "the tables have grown");
            }
        }
    });
}

/// Output, messages, where it ended, and what was wrong.
type ReadMessages = (Vec<u8>, Vec<u8>, Option<usize>, Option<RecordError>);

fn records(input: &[u8], piece: usize) -> ReadMessages {
    let (mut decoder, mut at, mut received) = (Records::default(), 0, 0);
    let mut said: ReadMessages = (Vec::new(), Vec::new(), None, None);
    loop {
        let seen = &input[at..received];
        let (taken, part) = match decoder.decode(seen) {
            Ok(step) => step,
            Err(error) => {
                said.3 = Some(error);
                return said;
            }
        };
        assert!(taken <= seen.len());
        match part {
            RecordPart::Out(range) => said.0.extend_from_slice(&seen[range]),
            RecordPart::Err(range) => said.1.extend_from_slice(&seen[range]),
            RecordPart::End => {
                said.2 = Some(at + taken);
                return said;
            }
            RecordPart::OutEnd | RecordPart::Nothing => {}
        }
        at += taken;
        if taken == 0 && received == input.len() {
            return said;
        }
        if taken == 0 {
            received = input.len().min(received + piece);
        }
    }
}

#[test]
fn fastcgi_records() {
    bolero::check!().for_each(|input: &[u8]| {
        let whole = records(input, input.len().max(1));
        assert!(whole.0.len() + whole.1.len() <= input.len());
        for piece in [1, 7] {
            assert_eq!(whole, records(input, piece));
        }
    });
}

#[test]
fn client_hello() {
    bolero::check!().for_each(|input: &[u8]| {
        let whole = client_hello::parse(input);
        let _ = client_hello::raw(input);
        for end in 0..input.len() {
            match client_hello::parse(&input[..end]) {
                client_hello::HelloProgress::More => {}
                // What is decided stays so, whatever follows.
                decided => assert_eq!(whole, decided),
            }
        }
        if let client_hello::HelloProgress::Hello(hello) = whole {
            assert!(hello.server_name.len() + hello.alpn.len() <= input.len());
        }
    });
}

#[test]
fn memcached_answers() {
    bolero::check!().for_each(|input: &[u8]| {
        if let Ok(memcached::ValueLine::Value(flags, _)) = memcached::line(input, b"k") {
            assert!(input.starts_with(b"VALUE k ") && input.ends_with(b"\r"));
            assert!(!flags.contains(&b' '));
        }
        for seen in 0..=memcached::END.len() {
            let Some(taken) = memcached::end(input, seen) else { continue };
            assert!(taken <= input.len() && seen + taken <= memcached::END.len());
            assert_eq!(memcached::END[seen..seen + taken], input[..taken]);
        }
    });
}
