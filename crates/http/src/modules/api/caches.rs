//! Lists caches and removes answers from them.

use serde_json::{Value, json};
use weir_cache::purge::{Which, purge};
use weir_cache::{MOST_TAGS, Tag, Tags};
use weir_log::{Cause, Level};
use weir_proto::http1::Method;

use super::error::{ApiError, ApiResult, members};
use crate::request::Request;

pub async fn answer(r: &Request, parts: &[&str], method: Method, body: &Value) -> ApiResult {
    let shown = |cache: &weir_cache::Cache| {
        let (size, entries) = cache.index.fill();
        let directory = cache.settings.place.directory.display().to_string();
        let most = cache.settings.max_size;
        json!({ "size": size, "entries": entries, "max_size": most, "directory": directory })
    };
    let caches = &r.site.caches;
    let (name, rest) = match parts {
        [] if method == Method::Get => {
            let all = caches.iter().map(|cache| (cache.name().to_owned(), shown(cache)));
            return Ok(Value::Object(all.collect()));
        }
        [] => return Err(ApiError::method("GET")),
        [name, rest @ ..] => (name, rest),
    };
    let cache = caches.iter().find(|cache| cache.name() == *name);
    let cache = cache.ok_or_else(ApiError::not_found)?;
    match (rest, method) {
        ([], Method::Get) => Ok(shown(cache)),
        ([], _) => Err(ApiError::method("GET")),
        (["purge"], Method::Post) => {
            let purged = purge(cache, which(body)?, r.event_loop.handle.files()).await;
            let purged = purged.map_err(|error| {
                let path = cache.settings.place.directory.display();
                let text =
                    format_args!("opendir() \"{path}\" failed {}", Cause(&error)).to_string();
                r.log(Level::Crit, format_args!("{text}"));
                ApiError::new(500, "the cache cannot be read")
            })?;
            r.log(
                Level::Notice,
                format_args!("{purged} answers were taken out of cache \"{}\"", cache.name()),
            );
            Ok(json!({ "purged": purged }))
        }
        (["purge"], _) => Err(ApiError::method("POST")),
        _ => Err(ApiError::not_found()),
    }
}

/// Reads which answers are to be removed: `{"key": TEXT}`, `{"prefix": TEXT}`, `{"tags": [TEXT,
/// ...]}`, `{"groups": [TEXT, ...], "origin": URL}` or `{"all": true}`.
fn which(body: &Value) -> Result<Which, ApiError> {
    let members = members(body, &["key", "prefix", "tags", "groups", "origin", "all"])?;
    if let Some(tags) = members.get("tags").filter(|_| members.len() == 1) {
        return Ok(Which::Tagged(tags_of(tags, Tag::named)?, Vec::new()));
    }
    if let (2, Some(groups), Some(Value::String(origin))) =
        (members.len(), members.get("groups"), members.get("origin"))
    {
        let origin = origin.trim_end_matches('/').to_ascii_lowercase().into_bytes();
        let tags = tags_of(groups, |name| Tag::group(&origin, name))?;
        return Ok(Which::Tagged(tags, origin));
    }
    let text =
        |name: &str| members.get(name).and_then(Value::as_str).map(|t| t.as_bytes().to_vec());
    match (members.len(), text("key"), text("prefix"), members.get("all")) {
        (1, Some(key), None, None) => Ok(Which::Key(key)),
        (1, None, Some(prefix), None) => Ok(Which::Prefix(prefix)),
        (1, None, None, Some(Value::Bool(true))) => Ok(Which::Prefix(Vec::new())),
        _ => Err(ApiError::invalid(
            "one of \"key\", \"prefix\" (a text), \"tags\" (a list of texts), \"groups\" with \"origin\" and \"all\" (true) is wanted",
        )),
    }
}

/// Converts a list of texts to tags.
fn tags_of(list: &Value, tag: impl Fn(&[u8]) -> Tag) -> Result<Tags, ApiError> {
    let texts = list.as_array().filter(|list| (1..=MOST_TAGS).contains(&list.len()));
    let texts = texts.and_then(|list| list.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
    let texts =
        texts.ok_or_else(|| ApiError::invalid("a list of texts is wanted, not too long"))?;
    Ok(texts.into_iter().map(|text| tag(text.as_bytes())).collect())
}
