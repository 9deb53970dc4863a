//! Certificates under test, and whole connections without a socket.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};

use crate::x509::{Certificate, Purpose, VerifyError, host};
use crate::{
    Authorities, Ciphers, ClientSettings, ConnectionProgress, Curves, Identity, ServerSettings,
    SessionCache, TicketSecret, TlsConnection, Versions, certificates, passwords, revocation_lists,
};

macro_rules! data {
    ($name:literal) => {
        include_bytes!(concat!("../testdata/", $name)).as_slice()
    };
}

fn der(pem: &[u8]) -> Vec<Vec<u8>> {
    certificates(pem).unwrap().iter().map(|c| c.to_vec()).collect()
}

fn trust(anchors: &[u8], depth: u32) -> Authorities {
    Authorities { anchors: der(anchors), lists: Vec::new(), depth }
}

fn check(authorities: &Authorities, chain: &[&[u8]], purpose: Purpose) -> Result<(), VerifyError> {
    let chain: Vec<_> = chain.iter().flat_map(|pem| certificates(pem).unwrap()).collect();
    authorities.check(&chain, purpose).map(drop)
}

#[test]
fn a_chain_leads_to_a_root_that_is_trusted() {
    let chain = [data!("leaf.pem"), data!("inter.pem")];
    let root = trust(data!("root.pem"), 1);
    assert_eq!(check(&root, &chain, Purpose::Server), Ok(()));
    assert_eq!(check(&root, &chain, Purpose::Client), Err(VerifyError::PURPOSE));
    assert_eq!(
        check(&trust(data!("root.pem"), 0), &chain, Purpose::Server),
        Err(VerifyError::NO_ISSUER)
    );
    assert_eq!(check(&root, &chain[..1], Purpose::Server), Err(VerifyError::LEAF));
    let other = trust(data!("self.pem"), 1);
    assert_eq!(check(&other, &chain, Purpose::Server), Err(VerifyError::NO_ISSUER));
    let with_root = [chain[0], chain[1], data!("root.pem")];
    assert_eq!(check(&other, &with_root, Purpose::Server), Err(VerifyError::SELF_SIGNED_ROOT));
    // A trusted authority only vouches for a chain that continues to a root.
    assert_eq!(
        check(&trust(chain[1], 1), &chain, Purpose::Server),
        Err(VerifyError::NO_ISSUER_YET)
    );
}

/// An authority may be renewed under its name, with its key.
#[test]
fn the_authority_that_is_valid_now_is_preferred() {
    let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let params = |name: &str, first, last| {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_before = date_time_ymd(first, 1, 1);
        params.not_after = date_time_ymd(last, 1, 1);
        params
    };
    let root = |first, last| params("root", first, last).self_signed(&key).unwrap();
    let [older, old, good, future] = [(1999, 2000), (2000, 2001), (2000, 4000), (4000, 4001)]
        .map(|(first, last)| root(first, last));
    let issuer = Issuer::new(params("root", 2000, 4000), &key);
    let below = |first, last| params("below", first, last).signed_by(&other, &issuer).unwrap();
    let (ended, renewed) = (below(2000, 2001), below(2000, 4000));
    let second = Issuer::new(params("below", 2000, 4000), &other);
    let [one, two] = [&issuer, &second].map(|issuer| {
        let leaf = params("leaf", 2000, 4000);
        leaf.signed_by(&KeyPair::generate().unwrap(), issuer).unwrap()
    });
    let judge = |anchors: &[&rcgen::Certificate], chain: &[&rcgen::Certificate]| {
        let anchors = anchors.iter().map(|anchor| anchor.der().to_vec()).collect();
        let chain: Vec<_> = chain.iter().map(|sent| sent.der().clone()).collect();
        let authorities = Authorities { anchors, lists: Vec::new(), depth: 2 };
        authorities.check(&chain, Purpose::Client).map(drop)
    };
    for anchors in [[&old, &good], [&good, &old], [&future, &good], [&good, &future]] {
        assert_eq!(judge(&anchors, &[&one]), Ok(()));
        for sent in [[&two, &ended, &renewed], [&two, &renewed, &ended]] {
            assert_eq!(judge(&anchors, &sent), Ok(()));
        }
    }
    assert_eq!(judge(&[&ended, &renewed, &good], &[&two]), Ok(()));
    // A trusted issuer that has expired is preferred to one that was sent.
    assert_eq!(judge(&[&good, &ended], &[&two, &renewed]), Err(VerifyError::EXPIRED));
    assert_eq!(judge(&[&older, &old], &[&one]), Err(VerifyError::EXPIRED));
    assert_eq!(judge(&[&old, &future], &[&one]), Err(VerifyError::NOT_YET));
}

#[test]
fn private_authorities_issue_what_the_public_web_refuses() {
    let root = trust(data!("root.pem"), 1);
    assert_eq!(check(&root, &[data!("client.pem")], Purpose::Client), Ok(()));
    let own = trust(data!("self.pem"), 1);
    assert_eq!(check(&own, &[data!("self.pem")], Purpose::Client), Ok(()));
    assert_eq!(check(&root, &[data!("self.pem")], Purpose::Client), Err(VerifyError::SELF_SIGNED));
}

#[test]
fn a_certificate_without_the_ca_flag_cannot_sign() {
    let chain = [data!("by-client.pem"), data!("client.pem")];
    let fault = check(&trust(data!("root.pem"), 5), &chain, Purpose::Client);
    assert_eq!(fault, Err(VerifyError::PURPOSE));
    let critical = check(&trust(data!("root.pem"), 1), &[data!("critical.pem")], Purpose::Client);
    assert_eq!(critical, Err(VerifyError::CRITICAL));
}

#[test]
fn every_certificate_must_be_on_no_list() {
    let mut root = trust(data!("root.pem"), 1);
    root.lists = revocation_lists(data!("root.crl")).unwrap();
    assert_eq!(check(&root, &[data!("client.pem")], Purpose::Client), Err(VerifyError::REVOKED));
    let chain = [data!("leaf.pem"), data!("inter.pem")];
    assert_eq!(check(&root, &chain, Purpose::Server), Err(VerifyError::NO_LIST));
    root.lists.extend(revocation_lists(data!("inter-empty.crl")).unwrap());
    assert_eq!(check(&root, &chain, Purpose::Server), Ok(()));
}

#[test]
fn a_damaged_certificate_does_not_verify() {
    let root = trust(data!("root.pem"), 1);
    let good = der(data!("client.pem")).remove(0);
    for at in (0..good.len()).step_by(3) {
        let mut bad = good.clone();
        bad[at] ^= 0x20;
        assert!(root.check(&[bad.into()], Purpose::Client).is_err(), "byte {at}");
    }
}

#[test]
fn names_of_hosts_are_found() {
    let leaf = der(data!("leaf.pem")).remove(0);
    let leaf = Certificate::parse(&leaf).unwrap();
    assert!(host::matches(&leaf, b"www.example.org"));
    assert!(host::matches(&leaf, b"a.example.net"));
    assert!(!host::matches(&leaf, b"example.net"));
    let client = der(data!("client.pem")).remove(0);
    assert!(host::matches(&Certificate::parse(&client).unwrap(), b"client"));
    assert_eq!(crate::x509::name::rfc2253(leaf.subject), "CN=www.example.org,O=Weir");
    assert_eq!(leaf.serial_hex(), "03");
}

#[test]
fn an_encrypted_key_needs_its_password() {
    for key in [data!("self.sealed.key"), data!("self.old.key")] {
        let load =
            |lines: &[u8]| Identity::load(data!("self.pem"), key, &passwords(lines)).map(drop);
        assert_eq!(load(b"wrong\nweir\n"), Ok(()));
        assert_eq!(load(b"wrong\n").unwrap_err().to_string(), "bad decrypt");
        assert!(load(b"").unwrap_err().to_string().contains("ssl_password_file"));
    }
    let other = Identity::load(data!("self.pem"), data!("leaf.key"), &[]).unwrap_err();
    assert_eq!(other.to_string(), "key values mismatch");
}

#[test]
fn a_certificate_and_key_in_use_are_read_once() {
    let load = |chain: &[u8]| Identity::load(chain, data!("leaf.key"), &[]);
    let chain = [data!("leaf.pem"), data!("inter.pem")].concat();
    let first = load(&chain).unwrap();
    assert_eq!(load(&chain).unwrap().leaf().as_ptr(), first.leaf().as_ptr());
    // Another chain with the same key is another pair. A wrong pair is refused each time.
    assert_ne!(load(data!("leaf.pem")).unwrap().leaf().as_ptr(), first.leaf().as_ptr());
    assert!(load(data!("self.pem")).is_err() && load(data!("self.pem")).is_err());
    // A pair that has got a staple is not what the next read returns.
    let mut stapled = first.clone();
    stapled.staple(b"response".to_vec());
    assert_eq!(load(&chain).unwrap().leaf().as_ptr(), first.leaf().as_ptr());
}

fn server() -> ServerSettings {
    let chain = [data!("leaf.pem"), data!("inter.pem")].concat();
    ServerSettings {
        identities: vec![Identity::load(&chain, data!("leaf.key"), &[]).unwrap()],
        versions: Versions::default(),
        ciphers: Ciphers::default(),
        curves: Curves::default(),
        prefer_server_ciphers: false,
        ask_client: None,
        tickets: TicketSecret::rotating(Duration::from_secs(300)),
        cache: None,
        session_timeout: Duration::from_secs(300),
        buffer_size: 16 * 1024,
        early_data: 0,
        alpn: vec![b"http/1.1".to_vec()],
        compress: false,
        context: Vec::new(),
        replaceable: None,
    }
}

fn client() -> ClientSettings {
    ClientSettings {
        versions: Versions::default(),
        ciphers: Ciphers::default(),
        curves: Curves::default(),
        identity: None,
        authorities: Some(Arc::new(trust(data!("root.pem"), 1))),
        names: Arc::default(),
        send_name: true,
        reuse: true,
        alpn: vec![b"http/1.1".to_vec()],
    }
}

/// Two ends, and the bytes on their way between them.
struct ConnectedEnds {
    ends: [TlsConnection; 2],
    wires: [Vec<u8>; 2],
    plain: [Vec<u8>; 2],
}

impl ConnectedEnds {
    fn new(server: &Arc<rustls::ServerConfig>, client: &crate::TlsClient) -> ConnectedEnds {
        let ends = [
            TlsConnection::client(client).unwrap(),
            TlsConnection::server(server.clone()).unwrap(),
        ];
        ConnectedEnds { ends, wires: Default::default(), plain: Default::default() }
    }

    /// Lets both ends work until no bytes are on their way.
    fn run(&mut self) -> Result<[ConnectionProgress; 2], rustls::Error> {
        let mut progress = [ConnectionProgress::Handshake; 2];
        loop {
            for (i, progress) in progress.iter_mut().enumerate() {
                let incoming = std::mem::take(&mut self.wires[i]);
                self.ends[i].feed(&incoming);
                *progress = self.ends[i].advance(&mut self.plain[i], &mut self.wires[1 - i])?;
            }
            if self.wires.iter().all(Vec::is_empty) {
                return Ok(progress);
            }
        }
    }
}

#[test]
fn bytes_go_both_ways_and_sessions_are_resumed() {
    for versions in [Versions { tls12: true, tls13: false }, Versions::default()] {
        for cache in [None, Some(SessionCache::own(4096))] {
            let tickets =
                cache.is_none().then(|| TicketSecret::rotating(Duration::from_secs(300))).flatten();
            let server = ServerSettings { versions, cache, tickets, ..server() }.build().unwrap();
            let client = client().build().unwrap().named(b"www.example.org");
            let mut given = None;
            for round in 0..2 {
                let mut pair = ConnectedEnds::new(&server, &client);
                assert_eq!(pair.run().unwrap(), [ConnectionProgress::Open; 2]);
                assert_eq!(pair.ends[1].negotiated().is_resumed(), round == 1, "{versions:?}");
                let id = pair.ends[1].negotiated().session_id().copied();
                assert!(id.is_some());
                // TLS 1.3 issues several sessions at once, and any of them may be resumed.
                if !versions.tls13 {
                    assert_eq!(id, *given.get_or_insert(id));
                }
                let long = vec![7; 100_000];
                let [c, s] = &mut pair.ends;
                c.encrypt(b"question", &mut pair.wires[1]).unwrap();
                s.encrypt(&long, &mut pair.wires[0]).unwrap();
                pair.run().unwrap();
                assert_eq!(pair.plain, [long, b"question".to_vec()]);
                assert_eq!(pair.ends[0].alpn(), Some(&b"http/1.1"[..]));
                pair.ends[0].close(&mut pair.wires[1]).unwrap();
                pair.run().unwrap();
                assert!(pair.ends[1].peer_closed);
            }
        }
    }
}

#[test]
fn a_server_goes_on_without_rustls_with_each_cipher() {
    let suites = |tls12: &str, tls13: &str| {
        let mut ciphers = Ciphers::default();
        ciphers.set(tls12);
        ciphers.set_tls13(tls13);
        ciphers
    };
    for tls13 in [false, true] {
        for (old, new) in [
            ("ECDHE-ECDSA-AES128-GCM-SHA256", "TLS_AES_128_GCM_SHA256"),
            ("ECDHE-ECDSA-AES256-GCM-SHA384", "TLS_AES_256_GCM_SHA384"),
            ("ECDHE-ECDSA-CHACHA20-POLY1305", "TLS_CHACHA20_POLY1305_SHA256"),
        ] {
            let (versions, ciphers) = (Versions { tls12: !tls13, tls13 }, suites(old, new));
            let buffer_size = 1000;
            let server = ServerSettings { versions, ciphers, buffer_size, ..server() };
            let client = client().build().unwrap().named(b"www.example.org");
            let mut pair = ConnectedEnds::new(&server.build().unwrap(), &client);
            assert_eq!(pair.run().unwrap(), [ConnectionProgress::Open; 2]);
            assert!(pair.ends[1].is_without_rustls());
            let shown = pair.ends[1].negotiated();
            assert_eq!(shown.cipher().as_deref(), Some(if tls13 { new } else { old }));
            assert_eq!((shown.alpn(), shown.is_early()), (Some(&b"http/1.1"[..]), false));
            assert!(shown.curve().is_some());
            for round in 1..4 {
                let [c, s] = &mut pair.ends;
                c.encrypt(&[1; 20_000], &mut pair.wires[1]).unwrap();
                s.encrypt(&[2; 20_000], &mut pair.wires[0]).unwrap();
                // A record has at most `buffer_size` bytes of contents.
                let records = pair.wires[0].len().div_ceil(1000 + 30);
                assert!((20..=21).contains(&records), "{records}");
                if tls13 {
                    c.refresh_keys().unwrap();
                    c.encrypt(b"", &mut pair.wires[1]).unwrap();
                }
                pair.run().unwrap();
                assert_eq!(pair.plain[0], vec![2; round * 20_000]);
                assert_eq!(pair.plain[1], vec![1; round * 20_000]);
            }
            pair.ends[1].close(&mut pair.wires[0]).unwrap();
            pair.ends[0].close(&mut pair.wires[1]).unwrap();
            assert_eq!(pair.run().unwrap()[1], ConnectionProgress::Closed);
        }
    }
}

/// A client that sends `early` as early data, if its session permits that.
fn first_flight(
    client: &crate::TlsClient,
    early: &[u8],
    wire: &mut Vec<u8>,
) -> rustls::ClientConnection {
    let mut config = (*client.config()).clone();
    config.enable_early_data = true;
    let mut end = rustls::ClientConnection::new(Arc::new(config), client.name.clone()).unwrap();
    if let Some(mut first) = end.early_data() {
        first.write_all(early).unwrap();
    }
    end.write_tls(wire).unwrap();
    end
}

#[test]
fn early_data_is_answered_before_the_handshake_is_complete_and_taken_once() {
    let cache = Some(SessionCache::own(4096));
    let early = ServerSettings { tickets: None, cache, early_data: 16_384, ..server() };
    let server = early.build().unwrap();
    let client = client().build().unwrap().named(b"www.example.org");
    let mut first = ConnectedEnds::new(&server, &client);
    assert_eq!(first.run().unwrap(), [ConnectionProgress::Open; 2]);
    assert!(!first.ends[1].is_early());

    let mut hello = Vec::new();
    let mut asks = first_flight(&client, b"question", &mut hello);
    let answer = |end: &mut TlsConnection, hello: &[u8]| {
        let (mut plain, mut out) = (Vec::new(), Vec::new());
        end.feed(hello);
        assert_eq!(end.advance(&mut plain, &mut out), Ok(ConnectionProgress::Handshake));
        (plain, out)
    };
    let mut end = TlsConnection::server(server.clone()).unwrap();
    let (plain, mut out) = answer(&mut end, &hello);
    assert_eq!(
        (plain.as_slice(), end.is_early(), end.negotiated().is_resumed()),
        (&b"question"[..], true, true)
    );
    end.encrypt(b"answer", &mut out).unwrap();
    asks.read_tls(&mut out.as_slice()).unwrap();
    asks.process_new_packets().unwrap();
    let mut said = [0; 6];
    asks.reader().read_exact(&mut said).unwrap();
    assert_eq!((&said, asks.is_early_data_accepted()), (b"answer", true));
    // The rest of the handshake.
    let mut rest = Vec::new();
    asks.write_tls(&mut rest).unwrap();
    end.feed(&rest);
    assert_eq!(end.advance(&mut Vec::new(), &mut Vec::new()), Ok(ConnectionProgress::Open));
    assert!(!end.is_early());

    // The replayed flight: the session was used once already.
    let mut again = TlsConnection::server(server).unwrap();
    let (plain, _) = answer(&mut again, &hello);
    assert!(plain.is_empty() && !again.negotiated().is_resumed());
}

#[test]
fn an_upstream_with_another_name_is_refused() {
    let server = server().build().unwrap();
    for name in ["other.example.org", ""] {
        let client = client().build().unwrap().named(name.as_bytes());
        let error =
            crate::HandshakeError::from(ConnectedEnds::new(&server, &client).run().unwrap_err());
        let text = format!("upstream SSL certificate does not match \"{name}\"");
        assert_eq!(error.to_string(), text);
    }
}

/// A server with a self-signed certificate, which has this common name and no other name.
fn certified_for(common_name: &str) -> (ServerSettings, Arc<Authorities>) {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, common_name);
    let key = rcgen::KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    let identity = Identity::load(pem.as_bytes(), key.serialize_pem().as_bytes(), &[]).unwrap();
    let anchors = der(pem.as_bytes());
    let authorities = Authorities { anchors, lists: Vec::new(), depth: 1 };
    (ServerSettings { identities: vec![identity], ..server() }, Arc::new(authorities))
}

#[test]
fn a_name_that_cannot_be_a_hosts_must_match_to_the_byte() {
    let names = [
        "My Backend",
        "0.0.0.0",
        "-a.test",
        ".test",
        "a.test",
        "a.test.",
        "a.test..",
        "",
        "unix:/a",
    ];
    for of_certificate in ["My Backend", "0.0.0.0", "-a.test", "a.test", "a.test.", "unix:/a"] {
        let (server, authorities) = certified_for(of_certificate);
        let server = server.build().unwrap();
        let client = ClientSettings { authorities: Some(authorities), ..client() };
        let client = client.build().unwrap();
        // Sessions of the right name exist first, and each name comes twice.
        for name in [&[of_certificate, of_certificate], &names[..], &names[..]].concat() {
            let ended = ConnectedEnds::new(&server, &client.named(name.as_bytes())).run();
            assert_eq!(ended.is_ok(), name == of_certificate, "{name:?} {of_certificate:?}");
        }
        assert!(ConnectedEnds::new(&server, &client).run().is_err(), "no name at all");
    }
}

#[test]
fn any_client_certificate_passes_the_handshake() {
    let ask_client = Some(der(data!("root.pem")));
    let server = ServerSettings { ask_client, ..server() }.build().unwrap();
    for identity in [None, Some((data!("client.pem"), data!("client.key")))] {
        let shown = identity.is_some();
        let identity = identity.map(|(chain, key)| Identity::load(chain, key, &[]).unwrap());
        let client = ClientSettings { identity, ..client() };
        let client = client.build().unwrap().named(b"www.example.org");
        let mut pair = ConnectedEnds::new(&server, &client);
        assert_eq!(pair.run().unwrap(), [ConnectionProgress::Open; 2]);
        assert_eq!(pair.ends[1].peer_certificates().len(), usize::from(shown));
    }
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_decided(
        start in proptest::option::of(0x14u8..0x19),
        pieces in proptest::collection::vec(proptest::prelude::any::<Vec<u8>>(), 1..5),
    ) {
        let mut connection = TlsConnection::server(server().build().unwrap()).unwrap();
        if let Some(kind) = start {
            connection.feed(&[kind, 3, 1, 0, 60]);
        }
        let (mut plain, mut out) = (Vec::new(), Vec::new());
        for piece in pieces {
            connection.feed(&piece);
            let _ = connection.advance(&mut plain, &mut out);
            let _ = connection.encrypt(b"x", &mut out);
            let _ = connection.close(&mut out);
        }
    }
}

#[test]
fn a_message_in_pieces_is_put_together_while_others_are_sent() {
    let server = server().build().unwrap();
    let mut pair =
        ConnectedEnds::new(&server, &client().build().unwrap().named(b"www.example.org"));
    pair.ends[0].advance(&mut Vec::new(), &mut pair.wires[1]).unwrap();
    // A ClientHello, in records of a few bytes.
    let hello = pair.wires[1].split_off(5);
    pair.wires[1].clear();
    for piece in hello.chunks(50) {
        let mut record = vec![0x16, 3, 1, 0, piece.len() as u8];
        record.extend_from_slice(piece);
        for byte in record {
            pair.ends[1].feed(&[byte]);
            pair.ends[1].advance(&mut pair.plain[1], &mut pair.wires[0]).unwrap();
            // Sending fails before the handshake is complete, without harm.
            assert!(pair.ends[1].encrypt(b"x", &mut Vec::new()).is_err());
        }
    }
    assert_eq!(pair.run().unwrap(), [ConnectionProgress::Open; 2]);
}

#[test]
fn keys_are_updated_between_data() {
    let server = server().build().unwrap();
    let mut pair =
        ConnectedEnds::new(&server, &client().build().unwrap().named(b"www.example.org"));
    pair.run().unwrap();
    for round in 1..4 {
        let [c, s] = &mut pair.ends;
        c.encrypt(b"before", &mut pair.wires[1]).unwrap();
        c.refresh_keys().unwrap();
        c.encrypt(b"after", &mut pair.wires[1]).unwrap();
        s.encrypt(b"answer", &mut pair.wires[0]).unwrap();
        pair.run().unwrap();
        assert_eq!(pair.plain[1], b"beforeafter".repeat(round));
        pair.ends[1].encrypt(b"more", &mut pair.wires[0]).unwrap();
        pair.run().unwrap();
        assert_eq!(pair.plain[0], b"answermore".repeat(round));
    }
}

#[test]
fn too_many_key_updates_without_data_end_the_connection() {
    let server = server().build().unwrap();
    let mut pair =
        ConnectedEnds::new(&server, &client().build().unwrap().named(b"www.example.org"));
    pair.run().unwrap();
    for _ in 0..32 {
        pair.ends[0].refresh_keys().unwrap();
        pair.ends[0].encrypt(b"", &mut pair.wires[1]).unwrap();
        pair.run().unwrap();
    }
    pair.ends[0].refresh_keys().unwrap();
    pair.ends[0].encrypt(b"", &mut pair.wires[1]).unwrap();
    assert!(pair.run().is_err());
}

#[test]
fn an_idle_connection_continues_in_another_thread() {
    let server = server().build().unwrap();
    let client = client().build().unwrap().named(b"www.example.org");
    let mut pair = ConnectedEnds::new(&server, &client);
    assert_eq!(pair.run().unwrap(), [ConnectionProgress::Open; 2]);
    assert!(pair.ends[1].incoming.is_empty() && pair.ends[1].unread.is_empty());
    let moved = std::thread::spawn(move || {
        pair.ends[0].encrypt(b"question", &mut pair.wires[1]).unwrap();
        pair.run().unwrap();
        pair
    });
    let mut pair = moved.join().unwrap();
    pair.ends[1].encrypt(b"answer", &mut pair.wires[0]).unwrap();
    pair.run().unwrap();
    assert_eq!(pair.plain, [b"answer".to_vec(), b"question".to_vec()]);
    fn can_move(_: impl Send) {}
    can_move(None::<crate::Secured>);
}
