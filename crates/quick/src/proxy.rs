//! `weir proxy`.

use std::fmt::Write as _;
use std::net::SocketAddr;

use clap::Parser;

use crate::acme::{self, Acme, AcmeOptions};
use crate::certificate::{self, url_host};
use crate::place::{self, head, panel_server, quoted};
use crate::target::Target;
use crate::{QuickError, Written, serve};

/// Puts weir before an application: TLS, HTTP/2, WebSocket, forwarded names, an access log and a live panel. Ctrl-C ends it
#[derive(Debug, Parser)]
#[command(name = "weir proxy", bin_name = "weir proxy")]
pub struct Proxy {
    /// Where the application listens: 3000, host:3000, http://host:3000 or unix:/path
    target: String,
    /// Speaks TLS and HTTP/2. A public name gets a certificate by ACME, any other one a self-signed certificate
    #[arg(long, value_name = "NAME")]
    tls: Option<String>,
    #[command(flatten)]
    acme: AcmeOptions,
    /// PORT on loopback, :PORT on all addresses, or ADDRESS:PORT [default: 8080, with --tls 8443, or the next free port; with ACME :443]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Where the live panel listens, in the same words [default: 8090, or the next free port]
    #[arg(long, value_name = "ADDRESS")]
    panel: Option<String>,
    /// Prints the configuration, and serves nothing
    #[arg(long)]
    show_config: bool,
}

/// Runs `weir proxy`. Returns the exit status.
pub fn proxy(options: Proxy) -> i32 {
    serve("weir proxy", options.show_config, written(&options))
}

fn written(options: &Proxy) -> Result<Written, QuickError> {
    let target = Target::parse(&options.target)?;
    let usual = if options.tls.is_some() { 8443 } else { 8080 };
    let acme = options.acme.of(options.tls.as_deref(), options.show_config)?;
    let listen = options.listen.as_deref().or(acme.as_ref().map(|_| acme::HTTPS));
    // The application may not run yet, so its port may look free.
    let own_port = target.own_addresses().first().map(SocketAddr::port);
    let address = place::address(listen, usual, own_port.as_slice(), options.show_config)?;
    let others = [Some(address.port()), own_port, acme.as_ref().map(|acme| acme.http().port())];
    let others: Vec<u16> = others.into_iter().flatten().collect();
    let panel = place::panel(options.panel.as_deref(), &others, options.show_config)?;
    let listens = [Some(address), acme.as_ref().map(Acme::http)];
    target.check_apart(listens.into_iter().flatten())?;
    let state = place::state()?;
    let mut text = head(&state, "proxy", address)?;
    let server = target.server();
    if let Some(acme) = &acme {
        text += &acme.issuer(&state)?;
    }
    let _ = write!(
        text,
        "    proxy_temp_path {};

    map $http_upgrade $connection_upgrade {{
        default upgrade;
        ''      '';                # without an upgrade, the connection to the application is kept
    }}

    upstream app {{
        server {server};
        keepalive 32;
    }}

    server {{
",
        quoted(&state.join("proxy_temp"))?
    );
    let mut trust = String::new();
    let url = match &options.tls {
        None => {
            text += &address.lines("");
            format!("http://{}/", address.shown())
        }
        Some(name) if acme.is_some() => {
            let _ = write!(
                text,
                "{}        http2 on;
        server_name {name};
        acme_certificate authority;
",
                address.lines("ssl")
            );
            let uri = acme.as_ref().map_or("", |acme| acme.uri());
            trust = format!("  certificate by {uri}; until it comes, handshakes fail\n");
            match address.port() {
                443 => format!("https://{}/", url_host(name)),
                port => format!("https://{}:{port}/", url_host(name)),
            }
        }
        Some(name) => {
            let files = certificate::of(name, &state)?;
            let (certificate, key) = (quoted(&files.certificate)?, quoted(&files.key)?);
            let _ = write!(
                text,
                "{}        http2 on;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
",
                address.lines("ssl")
            );
            let url = format!("https://{}:{}/", url_host(name), address.port());
            let path = files.certificate.display();
            trust = format!(
                "  trust      curl --cacert {path} {url} ; in a browser, import that file\n"
            );
            url
        }
    };
    text += "        status_zone app;
        client_max_body_size 1g;       # the application may allow less

        location / {
            proxy_pass http://app;
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header X-Real-IP $remote_addr;
            proxy_set_header X-Forwarded-For $remote_addr;
            proxy_set_header X-Forwarded-Host $http_host;
            proxy_set_header X-Forwarded-Proto $scheme;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_upgrade;
            proxy_buffering off;       # each event of a stream goes out at once
            proxy_request_buffering off;
            proxy_read_timeout 1h;     # a WebSocket or a stream may be silent that long
            proxy_send_timeout 1h;
        }
    }
";
    if let Some(acme) = &acme {
        text += &acme.server();
    }
    text += &panel_server(panel);
    text += "}\n";
    let down = match target.is_there() {
        true => String::new(),
        false => {
            format!("  note       nothing listens on {server} yet: until then, clients get 502\n")
        }
    };
    let greeting = format!(
        "weir proxy   {url} passes all requests to {server}
  panel      http://{}/
{trust}{down}  to stop    Ctrl-C; --show-config prints the configuration, to begin your own\n",
        panel.shown()
    );
    Ok(Written { text, greeting, state })
}
