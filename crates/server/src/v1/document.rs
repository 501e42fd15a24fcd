//! The OpenAPI document, made from the handlers.

use serde::Serialize;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, ResponseBuilder};
use utoipa::{Modify, OpenApi as _, ToSchema};
use utoipa_axum::router::OpenApiRouter;

/// What went wrong.
#[derive(Debug, Serialize, ToSchema)]
pub struct Error {
    /// The HTTP status again.
    pub code: u16,
    /// What happened, why, and what to do.
    pub message: String,
}

/// Bytes.
#[derive(Debug, ToSchema)]
#[schema(value_type = String, format = Binary)]
#[allow(dead_code, reason = "only described")]
pub struct Binary(Vec<u8>);

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "sloplet",
        description = "Disposable, contained machines for AI agents.\n\nAll paths but this document's want an API key, \
            as `X-API-KEY` or as a bearer token. Sizes are written like `512MiB`, times like `90s` or `1h30m`. \
            In answers, every moment is a number of milliseconds since 1970 whose name ends in `_ms`: `created_ms`, `started_ms`, \
            `ends_ms`, and `time_ms` for that of a record or a sample; lengths are `duration_ms` and the like. \
            A sandbox is named by its id or its name."
    ),
    components(schemas(Error)),
    modifiers(&Keys),
    security(("key" = []), ("bearer" = []))
)]
struct Base;

struct Keys;

impl Modify for Keys {
    fn modify(&self, document: &mut OpenApi) {
        let components = document.components.get_or_insert_default();
        let key = SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new("X-API-KEY")));
        let bearer = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
        components.add_security_scheme("key", key);
        components.add_security_scheme("bearer", bearer);
    }
}

/// What any request may be answered with besides what it is for.
const ERRORS: [(&str, &str); 12] = [
    ("400", "The request makes no sense"),
    ("401", "No API key, or an unknown one"),
    ("403", "The key, or the user inside, may not do that"),
    ("404", "There is no such thing, or it belongs to another key"),
    ("408", "The body did not come in time"),
    ("409", "Its state does not allow that"),
    ("413", "Too large"),
    ("429", "The key may not have more, or not so often"),
    ("500", "The server failed; its log says more"),
    ("501", "This kind of isolation cannot do that"),
    ("502", "The sandbox ended, or does not answer"),
    ("507", "Disk, memory or processes of the sandbox are used up"),
];

/// The document.
pub fn document() -> OpenApi {
    let (_, mut document) = OpenApiRouter::with_openapi(Base::openapi()).nest("/v1", super::routes()).split_for_parts();
    document.info.license = None;
    document.info.contact = None;
    for item in document.paths.paths.values_mut() {
        let operations =
            [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch, &mut item.head];
        for operation in operations.into_iter().flatten() {
            // Handlers are called alike in several modules; in the document no two may be.
            let tag = operation.tags.iter().flatten().next().cloned().unwrap_or_default();
            operation.operation_id = operation.operation_id.take().map(|id| format!("{tag}_{id}"));
            add_errors(operation);
        }
    }
    document
}

fn add_errors(operation: &mut Operation) {
    for (status, description) in ERRORS {
        operation.responses.responses.entry(status.to_owned()).or_insert_with(|| {
            let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Error"))).build();
            ResponseBuilder::new().description(description).content("application/json", content).build().into()
        });
    }
}

/// Where the document is checked in, and how to bring it up to date.
#[cfg(test)]
const HINT: &str = "docs/openapi.json is out of date: run 'cargo run -- serve --print-openapi > docs/openapi.json'";

/// The document as it is served and checked in.
pub fn text() -> String {
    document().to_pretty_json().map(|text| text + "\n").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_document_that_is_checked_in_is_that_of_the_code() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        assert!(std::fs::read_to_string(path).unwrap_or_default() == text(), "{HINT}");
    }

    /// Every moment has the same unit, and a name that says so.
    #[test]
    fn times_have_one_name() {
        let document: serde_json::Value = serde_json::from_str(&text()).unwrap();
        let mut moments = 0;
        for (schema, described) in document["components"]["schemas"].as_object().unwrap() {
            for (name, property) in described["properties"].as_object().into_iter().flatten() {
                let about = property["description"].as_str().unwrap_or_default();
                let told = about.contains("since 1970");
                assert!(!told || about.contains("milliseconds since 1970"), "{schema}.{name}: {about}");
                assert!(!told || name.ends_with("_ms"), "{schema}.{name}: {about}");
                assert!(!name.ends_with("_at") && !name.ends_with("At") && name != "at_ms", "{schema}.{name}");
                let count = property["type"] == "integer" && about.starts_with("When");
                assert!(!count || name.ends_with("_ms"), "{schema}.{name}: {about}");
                moments += u32::from(told);
            }
        }
        assert!(moments > 10, "{moments}");
    }

    #[test]
    fn every_operation_has_a_name_of_its_own_and_says_what_errors_look_like() {
        let document: serde_json::Value = serde_json::from_str(&text()).unwrap();
        assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
        let mut names = HashSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                assert!(names.insert(operation["operationId"].to_string()), "{method} {path}: {operation}");
                assert!(!operation["responses"]["404"]["content"]["application/json"].is_null(), "{method} {path}");
                assert!(path.starts_with("/v1/"), "{path}");
            }
        }
        assert!(names.len() > 50, "{}", names.len());
    }
}
