//! `weir file-server`.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Parser;

use crate::place::{self, head, panel_server, quoted, shown};
use crate::{QuickError, Written, serve};

/// Serves the files of a directory, but those whose names begin with a dot. Ctrl-C ends it
#[derive(Debug, Parser)]
#[command(name = "weir file-server", bin_name = "weir file-server")]
pub struct FileServer {
    /// The directory
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// Lists directories that have no index.html
    #[arg(long)]
    browse: bool,
    /// PORT on loopback, :PORT on all addresses, or ADDRESS:PORT [default: 8080, or the next free port]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Where the live panel listens, in the same words [default: 8090, or the next free port]
    #[arg(long, value_name = "ADDRESS")]
    panel: Option<String>,
    /// Prints the configuration, and serves nothing
    #[arg(long)]
    show_config: bool,
}

/// `weir file-server`: the exit status.
pub fn file_server(options: FileServer) -> i32 {
    serve("weir file-server", options.show_config, written(&options))
}

/// The types of the files that sites have; others are offered as downloads.
const TYPES: &str = "    types {
        text/html                html htm;
        text/css                 css;
        text/plain               txt log md;
        text/csv                 csv;
        text/javascript          js mjs;
        application/json         json map;
        application/manifest+json webmanifest;
        application/wasm         wasm;
        application/xml          xml;
        application/pdf          pdf;
        application/zip          zip;
        image/avif               avif;
        image/gif                gif;
        image/jpeg               jpg jpeg;
        image/png                png;
        image/svg+xml            svg;
        image/webp               webp;
        image/x-icon             ico;
        font/woff                woff;
        font/woff2               woff2;
        audio/mpeg               mp3;
        audio/ogg                ogg;
        video/mp4                mp4;
        video/webm               webm;
    }
    default_type application/octet-stream;
    charset utf-8;
    gzip on;
    gzip_types text/css text/plain text/javascript application/json application/wasm image/svg+xml;
";

fn written(options: &FileServer) -> Result<Written, QuickError> {
    let failed = |e| QuickError::File(options.dir.clone(), e);
    let dir = options.dir.canonicalize().map_err(failed)?;
    if !dir.is_dir() {
        return Err(QuickError::File(dir, std::io::ErrorKind::NotADirectory.into()));
    }
    let address = place::address(options.listen.as_deref(), 8080)?;
    let panel = place::panel(options.panel.as_deref(), address)?;
    let state = place::state()?;
    let mut text = head(&state, "file-server", address)?;
    text += TYPES;
    let browse = if options.browse { "on" } else { "off" };
    let _ = write!(
        text,
        "
    server {{
        listen {address};
        status_zone files;
        root {};
        index index.html;
        autoindex {browse};
        sendfile on;

        # Not .git and .env, but .well-known.
        location ~ /\\.(?!well-known(/|$)) {{
            return 404;
        }}
    }}
",
        quoted(&dir)?
    );
    text += &panel_server(panel);
    text += "}\n";
    let greeting = format!(
        "weir file-server   http://{}/ serves {}
  panel      http://{}/
  to stop    Ctrl-C; --show-config prints the configuration, to begin your own\n",
        shown(address),
        dir.display(),
        shown(panel)
    );
    Ok(Written { text, greeting, state })
}
