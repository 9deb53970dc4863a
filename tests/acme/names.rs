//! A name server for tests: one zone, whose TXT records are changed by the test, by a file or by signed updates.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use hickory_proto::op::{Message, OpCode, ResponseCode};
use hickory_proto::rr::rdata::tsig::TsigAlgorithm;
use hickory_proto::rr::rdata::{A, CNAME, NS, SOA, TXT};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType, TSigResponseContext, TSigner};

/// Its key, as `tsig-keygen` prints one.
pub const KEY: &str =
    "key \"acme\" {\n\talgorithm hmac-sha256;\n\tsecret \"c2VjcmV0IG9mIGEgdGVzdA==\";\n};\n";
const SECRET: &[u8] = b"secret of a test";

/// The server.
#[derive(Clone)]
pub struct NameServer(Arc<Shared>);

struct Shared {
    address: SocketAddr,
    zone: Name,
    world: Mutex<World>,
}

#[derive(Default)]
struct World {
    texts: BTreeSet<(String, String)>,
    aliases: BTreeMap<String, String>,
    /// So many questions for a text are answered with none, though there is one.
    slow: usize,
    /// Every text that there was.
    all: BTreeSet<(String, String)>,
    /// Lines `NAME. VALUE` that a program writes.
    file: Option<PathBuf>,
}

impl NameServer {
    /// For a zone, at any port of 127.0.0.1.
    pub fn new(zone: &str) -> NameServer {
        // The port that TCP gets may be another one's in UDP.
        (0..100).find_map(|_| Self::at("127.0.0.1:0".parse().unwrap(), zone).ok()).unwrap()
    }

    /// At this address.
    pub fn at(address: SocketAddr, zone: &str) -> std::io::Result<NameServer> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let socket = UdpSocket::bind(address)?;
        let zone = Name::from_str(&format!("{zone}.")).unwrap();
        let server = NameServer(Arc::new(Shared { address, zone, world: Mutex::default() }));
        let own = server.clone();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok((n, from)) = socket.recv_from(&mut buffer) {
                let answer = own.answer(&buffer[..n]);
                let _ = socket.send_to(&answer, from);
            }
        });
        let own = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = own.connection(stream);
            }
        });
        Ok(server)
    }

    /// Where it is asked.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// The texts of a name, aliases followed.
    pub fn texts(&self, name: &str) -> Vec<String> {
        let world = self.world();
        let name = world.aliases.get(name).map_or(name, String::as_str);
        let written = world.file.as_ref().and_then(|file| std::fs::read_to_string(file).ok());
        let written = written.unwrap_or_default();
        let lines = written.lines().filter_map(|line| line.split_once(". "));
        let own = world.texts.iter().map(|(own, value)| (own.as_str(), value.as_str()));
        let found = lines.chain(own).filter(|(own, _)| *own == name);
        found.map(|(_, value)| value.to_owned()).collect()
    }

    /// How many texts there are, and how many there were.
    pub fn counts(&self) -> (usize, usize) {
        let world = self.world();
        (world.texts.len(), world.all.len())
    }

    /// Adds a text.
    pub fn publish(&self, name: &str, value: &str) {
        let mut world = self.world();
        world.texts.insert((name.to_owned(), value.to_owned()));
        world.all.insert((name.to_owned(), value.to_owned()));
    }

    /// A name stands for another one.
    pub fn alias(&self, name: &str, target: &str) {
        self.world().aliases.insert(name.to_owned(), target.to_owned());
    }

    /// It shows the texts of a file as well.
    pub fn reads(&self, file: PathBuf) {
        self.world().file = Some(file);
    }

    /// It shows texts only after so many questions for one.
    pub fn is_slow(&self, questions: usize) {
        self.world().slow = questions;
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.world.lock().unwrap()
    }

    fn connection(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let mut bytes = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut bytes)?;
        let answer = self.answer(&bytes);
        stream.write_all(&u16::try_from(answer.len()).unwrap().to_be_bytes())?;
        stream.write_all(&answer)
    }

    fn answer(&self, bytes: &[u8]) -> Vec<u8> {
        let asked = Message::from_vec(bytes).unwrap();
        let mut answer = Message::response(asked.metadata.id, asked.metadata.op_code);
        answer.queries = asked.queries.clone();
        if asked.metadata.op_code == OpCode::Update {
            return self.update(bytes, &asked, answer);
        }
        answer.metadata.authoritative = true;
        let query = &asked.queries[0];
        let (name, kind) = (query.name().clone(), query.query_type());
        let plain = plain(&name);
        let is_zone = name == self.0.zone;
        let alias = self.world().aliases.get(&plain).cloned();
        let found = match (alias, kind, self.0.address.ip()) {
            (Some(target), ..) => vec![RData::CNAME(CNAME(absolute(&target)))],
            (_, RecordType::SOA, _) if is_zone => vec![self.soa()],
            (_, RecordType::NS, _) if is_zone => {
                vec![RData::NS(NS(Name::from_str("ns").unwrap().append_domain(&name).unwrap()))]
            }
            (_, RecordType::A, IpAddr::V4(ip)) => vec![RData::A(A(ip))],
            (_, RecordType::TXT, _) => self.shown(&plain),
            _ => Vec::new(),
        };
        let record = |data| Record::from_rdata(name.clone(), 1, data);
        answer.answers.extend(found.into_iter().map(record));
        if answer.answers.is_empty() && self.0.zone.zone_of(&name) {
            answer.authorities.push(Record::from_rdata(self.0.zone.clone(), 1, self.soa()));
        }
        answer.to_vec().unwrap()
    }

    fn soa(&self) -> RData {
        let zone = self.0.zone.clone();
        RData::SOA(SOA::new(zone.clone(), zone, 1, 60, 60, 60, 1))
    }

    fn shown(&self, name: &str) -> Vec<RData> {
        let slow = std::mem::replace(&mut self.world().slow, 0);
        self.world().slow = slow.saturating_sub(1);
        let texts = if slow > 0 { Vec::new() } else { self.texts(name) };
        texts.into_iter().map(|text| RData::TXT(TXT::new(vec![text]))).collect()
    }

    fn update(&self, bytes: &[u8], asked: &Message, mut answer: Message) -> Vec<u8> {
        let key = Name::from_str("acme.").unwrap();
        let signer = TSigner::new(SECRET.to_vec(), TsigAlgorithm::HmacSha256, key, 300).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let verified = signer.verify_message_byte(bytes, None, true).ok();
        let Some((mac, ..)) = verified.filter(|(.., range)| range.contains(&now)) else {
            answer.metadata.response_code = ResponseCode::NotAuth;
            return answer.to_vec().unwrap();
        };
        assert_eq!(*asked.queries[0].name(), self.0.zone, "the zone of the update");
        for record in &asked.authorities {
            let RData::TXT(txt) = &record.data else { panic!("{record:?}") };
            let value = String::from_utf8(txt.txt_data.concat()).unwrap();
            let name = plain(&record.name);
            match record.dns_class {
                DNSClass::NONE => _ = self.world().texts.remove(&(name, value)),
                _ => self.publish(&name, &value),
            }
        }
        let context = TSigResponseContext::new(asked.metadata.id, now, signer, mac, None);
        let signature = context.sign(&answer.to_vec().unwrap()).unwrap();
        answer.set_signature(signature);
        answer.to_vec().unwrap()
    }
}

fn plain(name: &Name) -> String {
    name.to_ascii().trim_end_matches('.').to_ascii_lowercase()
}

fn absolute(name: &str) -> Name {
    Name::from_str(&format!("{name}.")).unwrap()
}
