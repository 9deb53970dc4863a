//! `weir_api` lets an operator change a running server, with JSON over HTTP. nginx has no such
//! module.
//!
//! Access is restricted by the other settings of the location. A location that is open to all is
//! refused at start-up. Requests that a page of another site may have sent are refused
//! (`request::origin`), and a request that changes something must have the content type of JSON.

use std::sync::OnceLock;

use bytes::Bytes;
use rustix::process::geteuid;
use serde_json::{Value, json};
use weir_conf::{Error, Spot, Word};
use weir_engine::Boxed;
use weir_log::Level;
use weir_proto::http1::{HeaderId, Method};
use weir_values::Address;

use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set};
use crate::config::types;
use crate::modules::{access, auth_basic, auth_request};
use crate::phases;
use crate::phases::{Later, Step};
use crate::request::{Request, origin};
use crate::secret::is_same;
use crate::site::content::ContentHandler;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};

mod caches;
mod config;
mod error;
mod logs;
mod servers;

use error::{ApiError, ApiResult};

/// No settings: the directive sets a content handler.
#[derive(Debug, Clone, Default)]
pub struct Conf;

/// `weir_api`
#[derive(Debug, Clone)]
pub struct Api {
    /// The place of the directive.
    at: Spot,
    /// `token=`: the token that clients must send.
    token: Option<Vec<u8>>,
    /// `config`: clients may replace the whole configuration.
    config: bool,
}

impl Settings for Conf {}

/// The user that started the server. The master sets it when it reads a configuration with an API,
/// which is before it forks the first worker.
static OWNER: OnceLock<u32> = OnceLock::new();

/// Checks each block with the handler against the access rules that are in force there.
fn finish(s: &mut Scope<'_, '_>) -> Result<(), Error> {
    let Some(api) = CONTENT.of(&s.location.core.content) else { return Ok(()) };
    OWNER.get_or_init(|| geteuid().as_raw());
    s.setup.forbid_reuse();
    s.setup.takes_commands = true;
    s.setup.takes_changes |= api.config;
    let listens = &s.server.listens;
    let is_local = |address: &Address| matches!(address, Address::Unix(_));
    let inside = !listens.is_empty() && listens.iter().all(|l| is_local(&l.listen.address));
    if inside || api.token.is_some() || is_guarded(&s.location) {
        return Ok(());
    }
    let text = "any client may reach \"weir_api\" here: it needs \"deny all\", \"auth_basic\", \
                \"auth_request\", \"token=\" or a server that listens on \"unix:\" alone";
    Err(api.at.error(text))
}

/// Whether the access rules of the location restrict its clients.
fn is_guarded(conf: &LocationConf) -> bool {
    let asked = [
        access::wanted(conf).then(|| access::denies_the_rest(access::CONF.of(conf))),
        auth_basic::wanted(conf).then(|| auth_basic::asks_every_client(auth_basic::CONF.of(conf))),
        auth_request::wanted(conf).then_some(true),
    ];
    let mut asked = asked.into_iter().flatten().peekable();
    match conf.core.satisfy_any {
        true => asked.peek().is_some() && asked.all(|keeps_out| keeps_out),
        false => asked.any(|keeps_out| keeps_out),
    }
}

const DIRECTIVES: &[Directive] = &[Directive {
    name: "weir_api",
    help: "Shows and changes the state of servers, caches and logs, as JSON; `token=FILE`: for requests with the token in \
           this file; `config`: accepts whole configurations as well.",
    set: Set::Simple(set),
}];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module =
    Module { name: "http_api", directives: DIRECTIVES, finish, ..Module::NEW };

/// `weir_api [token=FILE] [config]`
fn set(s: &mut Scope<'_, '_>, d: &weir_conf::Directive) -> Result<(), Error> {
    s.once(d)?;
    let (mut token, mut config) = (None, false);
    for word in &d.args {
        match word.bytes.strip_prefix(b"token=").filter(|name| !name.is_empty()) {
            Some(name) if token.is_none() => token = Some(read_token(s, d, word, name)?),
            None if word.is("config") && !config => config = true,
            _ => return Err(d.invalid("parameter", word)),
        }
    }
    let at = d.arg(0).unwrap_or(&d.name);
    s.answer_with(CONTENT.with(Api { at: Spot::new(d, at), token, config }));
    Ok(())
}

fn read_token(
    s: &mut Scope<'_, '_>,
    d: &weir_conf::Directive,
    word: &Word,
    name: &[u8],
) -> Result<Vec<u8>, Error> {
    let text = s.setup.pem_files.read(name);
    let text = text.map_err(|why| {
        let shown = s.setup.pem_files.shown(name);
        d.error_at(word, format!("cannot read \"{shown}\" {why}"))
    })?;
    let token = text.trim_ascii().to_vec();
    if token.len() < SHORTEST || !token.iter().all(u8::is_ascii_graphic) {
        let text = format!("a token has at least {SHORTEST} letters, digits and signs");
        return Err(d.error_at(word, text));
    }
    Ok(token)
}

/// The resources, as `GET` of the root lists them.
const RESOURCES: [&str; 4] = ["upstreams", "stream/upstreams", "caches", "logs"];
/// The minimum length of a token. A shorter one could be guessed.
const SHORTEST: usize = 16;
/// The maximum length of a JSON body.
const LONGEST: u64 = 8 << 10;

/// The content handler.
static CONTENT: ContentHandler<Api> = ContentHandler {
    module: "api",
    in_limit_except: true,
    optional: false,
    run: |r, settings| phases::Answer::Later(handler(r, settings)),
};

/// The content handler of a location with `weir_api`.
fn handler<'a>(r: &'a mut Request, api: &'static Api) -> Later<'a> {
    Boxed::new(move || async move {
        r.response.headers.add(b"Cache-Control", b"no-store");
        r.response.headers.add(b"X-Content-Type-Options", b"nosniff");
        let (status, value) = match answer(r, api).await {
            Ok(value) => (200, value),
            Err(ApiError { status, text, place, header }) => {
                if let Some((name, value)) = header {
                    r.response.headers.add(name.as_bytes(), value.as_bytes());
                }
                let mut error = json!({ "status": status, "text": text });
                if let Some(members) = error.as_object_mut() {
                    members.extend(place.into_iter().map(|(name, value)| (name.to_owned(), value)));
                }
                (status, json!({ "error": error }))
            }
        };
        r.response.status = status;
        r.response.set_type(b"application/json");
        Step::Respond(Bytes::from(format!("{value:#}\n")))
    })
}

async fn answer(r: &mut Request, api: &Api) -> ApiResult {
    if let Some(token) = &api.token {
        // A page of another site does not know the token, so a request with the token needs no
        // check of its origin.
        let shown = r.header(HeaderId::Authorization).unwrap_or_default();
        let shown = shown.strip_prefix(b"Bearer ").unwrap_or_default();
        if !is_same(shown.trim_ascii(), token) {
            return Err(ApiError::unknown());
        }
    } else if let Some(why) = origin::refuse(r).or_else(|| refuse_peer(r)) {
        r.log(Level::Error, format_args!("weir_api refused a request: {why}"));
        return Err(ApiError::new(403, why));
    }
    let method = match r.method {
        Method::Head => Method::Get,
        method => method,
    };
    let below = r.path.strip_prefix(r.location.name.as_slice()).unwrap_or(&r.path);
    let below = String::from_utf8_lossy(below).into_owned();
    let parts: Vec<&str> = below.split('/').filter(|part| !part.is_empty()).collect();
    if let ["config", rest @ ..] = parts.as_slice() {
        if !api.config {
            return Err(ApiError::new(403, "this needs \"weir_api config\""));
        }
        return config::answer(r, rest, method).await;
    }
    let body = match method {
        Method::Get => Value::Null,
        _ => json_body(r).await?,
    };
    match (parts.as_slice(), method) {
        ([], Method::Get) => {
            let resources: Vec<_> =
                RESOURCES.into_iter().chain(api.config.then_some("config")).collect();
            Ok(json!({ "version": 1, "resources": resources }))
        }
        ([], _) => Err(ApiError::method("GET")),
        (["upstreams", group, "servers"], Method::Post | Method::Delete) if api.config => {
            config::server(r, "http", group, method, &body).await
        }
        (["stream", "upstreams", group, "servers"], Method::Post | Method::Delete)
            if api.config =>
        {
            config::server(r, "stream", group, method, &body).await
        }
        (["upstreams", rest @ ..], method) => {
            servers::answer(r, &servers::of_http(r), rest, method, &body)
        }
        (["stream", "upstreams", rest @ ..], method) => {
            servers::answer(r, &servers::of_stream(r), rest, method, &body)
        }
        (["caches", rest @ ..], method) => caches::answer(r, rest, method, &body).await,
        (["logs", rest @ ..], method) => logs::answer(r, rest, method, &body),
        _ => Err(ApiError::not_found()),
    }
}

/// Why a request is refused if only a Unix-domain socket restricts access. All users of the machine
/// may connect to such a socket, and a server of `stream` may pass other clients on to it.
fn refuse_peer(r: &Request) -> Option<String> {
    if is_guarded(r.conf()) {
        return None;
    }
    match r.conn.peer_user() {
        Some(user) if user == 0 || OWNER.get() == Some(&user) => None,
        Some(user) => {
            Some(format!("the user {user} is neither root nor the one that started the server"))
        }
        None => Some("it did not come over a unix socket".to_owned()),
    }
}

/// Reads the JSON body of a request that changes something. The content type must be that of JSON.
async fn json_body(r: &mut Request) -> ApiResult {
    content_type(r, &["application/json"])?;
    let text = body(r, LONGEST).await?;
    if text.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(&text).map_err(|why| ApiError::invalid(format!("no JSON: {why}")))
}

/// The content type of the body, which must be one of these.
fn content_type<'k>(r: &Request, kinds: &[&'k str]) -> Result<&'k str, ApiError> {
    let named = types::without_parameters(r.header(HeaderId::ContentType).unwrap_or_default());
    let known = kinds.iter().find(|known| named.eq_ignore_ascii_case(known.as_bytes()));
    known.copied().ok_or_else(|| {
        let text = format!("what changes something says Content-Type: {}", kinds.join(" or "));
        ApiError::new(415, text)
    })
}

/// Reads a body of at most `longest` bytes.
async fn body(r: &mut Request, longest: u64) -> Result<Vec<u8>, ApiError> {
    let too_long = || ApiError::new(413, "the body is too long");
    if r.body.length.is_some_and(|length| length > longest) || r.body.file.is_some() {
        return Err(too_long());
    }
    // Another handler may have read the beginning.
    let mut text = r.body.memory.concat();
    loop {
        let piece = r.next_body_span().await;
        let piece = piece.map_err(|e| ApiError::new(e.status(), "the body cannot be read"))?;
        let Some(piece) = piece else { break };
        text.extend_from_slice(r.buf.get(piece).unwrap_or_default());
        if text.len() as u64 > longest {
            return Err(too_long());
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use crate::trial::{complaint, site};

    #[test]
    fn an_api_open_to_all_is_refused() {
        let refused = "any client may reach \"weir_api\" here";
        for open in [
            "",
            "allow 127.0.0.1;",
            "allow all; deny all;",
            "deny 10.0.0.1; allow all;",
            "auth_basic off; auth_basic_user_file f;",
            "auth_basic x;",
            "satisfy any; deny all; auth_basic $arg_x; auth_basic_user_file f;",
            "satisfy any; allow all; auth_basic x; auth_basic_user_file f;",
            "deny all; limit_except GET { allow all; }",
            "deny all; limit_except GET { allow 127.0.0.1; }",
            "auth_basic x; auth_basic_user_file f; limit_except GET { auth_basic off; }",
        ] {
            let text = complaint(&format!("weir_api; {open}"));
            assert!(text.starts_with(refused), "{open}: {text}");
        }
        for guarded in [
            "deny all;",
            "allow 127.0.0.1; deny all;",
            "auth_basic x; auth_basic_user_file f;",
            "auth_request /who;",
            "satisfy any; allow 127.0.0.1; deny all; auth_basic x; auth_basic_user_file f;",
            "allow all; auth_basic x; auth_basic_user_file f;",
            "deny all; if ($arg_x) { add_header A b; } location /inside { allow all; }",
            "deny all; limit_except GET { allow 127.0.0.1; deny all; }",
        ] {
            assert_eq!(complaint(&format!("weir_api; {guarded}")), "", "{guarded}");
        }
        let server = |listen: &str| {
            let text = format!("server {{ {listen} location / {{ weir_api; }} }}");
            site(&text).err().unwrap_or_default()
        };
        assert_eq!(server("listen unix:/tmp/weir.sock;"), "");
        assert!(server("listen unix:/tmp/weir.sock; listen 80;").starts_with(refused));
        assert!(complaint("weir_api word;").starts_with("invalid parameter"));
        assert!(complaint("weir_api token=/nowhere/token;").starts_with("cannot read"));
        assert!(complaint("weir_api token=data:short;").starts_with("a token has at least"));
        assert_eq!(complaint("weir_api token=data:0123456789abcdef;"), "");
        let limited = "weir_api token=data:0123456789abcdef; limit_except GET { allow all; }";
        assert_eq!(complaint(limited), "");
    }
}
