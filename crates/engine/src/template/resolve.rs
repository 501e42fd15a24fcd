//! From what a client calls a template to an image.

use sha2::{Digest, Sha256};
use sloplet_image::{ImageError, Store};

use super::record::{IMAGES, Resources, Template};
use super::registry::{Templates, not_found};
use super::{cache, names};
use crate::life::{LifeError, Snapshot};

/// What a sandbox starts from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The image.
    pub image: String,
    /// What listings show: an id, or the image's name.
    pub id: String,
    /// What people call it.
    pub alias: Option<String>,
    /// The template, if it is one.
    pub template: Option<String>,
    /// What its sandboxes may use.
    pub resources: Resources,
}

/// How the names of images that belong to somebody begin.
const PRIVATE: [&str; 6] = [IMAGES, cache::IMAGES, PULLED, "snapshot-", "saved-", "fork-"];

/// How the names of images begin that were pulled for somebody.
const PULLED: &str = "pulled-";

/// Under which name an image is stored that an owner has pulled, with their account perhaps. Others pull it themselves.
pub(super) fn pulled_name(owner: &str, reference: &str) -> String {
    let hash = Sha256::digest(format!("{owner}\0{reference}"));
    let digits: String = hash.iter().take(20).map(|byte| format!("{byte:02x}")).collect();
    format!("{PULLED}{digits}")
}

/// Whether an image belongs to somebody: it is found by the name of a template or snapshot of theirs, never by its own.
pub fn is_private(image: &str) -> bool {
    PRIVATE.iter().any(|prefix| image.starts_with(prefix))
}

/// What E2B calls its ready-made images, and what ours are called.
const READY_MADE: [(&str, &str); 6] = [
    ("", "base"),
    ("base", "base"),
    ("e2bdev/base", "base"),
    ("code-interpreter-v1", "code-interpreter"),
    ("code-interpreter", "code-interpreter"),
    ("e2bdev/code-interpreter", "code-interpreter"),
];

impl Templates {
    /// Finds what a sandbox is to start from: an owner's template or snapshot, by id or name and perhaps with a tag; a
    /// public template, by id; a stored image.
    pub fn resolve(&self, owner: &str, reference: &str) -> Result<Origin, LifeError> {
        if reference.len() > 512 {
            return Err(LifeError::Invalid("the name of the template is too long".into()));
        }
        let (name, tag) = names::split(reference);
        if let Some(template) = self.usable(owner, name)? {
            return self.template_origin(template, tag);
        }
        match self.0.sandboxes.get_snapshot(owner, name) {
            Ok(snapshot) => return Ok(snapshot_origin(&snapshot)),
            Err(LifeError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        self.image_origin(reference)?.ok_or_else(|| not_found("template", reference))
    }

    /// One that this owner may use: their own, or a public one whose id they know.
    fn usable(&self, owner: &str, id: &str) -> Result<Option<Template>, LifeError> {
        match self.find(owner, id)? {
            Some(template) => Ok(Some(template)),
            None => Ok(self.0.templates.get(id)?.filter(|template| template.public)),
        }
    }

    fn template_origin(&self, template: Template, tag: Option<&str>) -> Result<Origin, LifeError> {
        let build = &template.tagged(tag)?.build;
        let resources = self.0.builds.get(build)?.map(|build| build.resources).unwrap_or_default();
        Ok(Origin {
            image: super::record::image_name(&template.id, build),
            id: template.id.clone(),
            alias: Some(template.name),
            template: Some(template.id),
            resources,
        })
    }

    /// An image that an owner has pulled, under the name that they know.
    pub(super) fn pulled_origin(&self, image: &str, shown: &str) -> Result<Option<Origin>, LifeError> {
        match self.0.sandboxes.engine().images()?.resolve(image) {
            Ok(_) => Ok(Some(Origin {
                image: image.to_owned(),
                id: shown.to_owned(),
                alias: Some(shown.to_owned()),
                template: None,
                resources: Resources::default(),
            })),
            Err(ImageError::Unknown { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// An image of this host.
    pub(super) fn image_origin(&self, reference: &str) -> Result<Option<Origin>, LifeError> {
        let images = self.0.sandboxes.engine().images()?;
        let plain = reference.strip_suffix(":latest").unwrap_or(reference);
        let origin = |image: &str, id: &str| Origin {
            image: image.to_owned(),
            id: id.to_owned(),
            alias: Some(id.to_owned()),
            template: None,
            resources: Resources::default(),
        };
        // An image that really has that name comes first.
        if is_stored(images, reference)? {
            return Ok(Some(origin(reference, plain)));
        }
        let Some((_, image)) = READY_MADE.iter().find(|(name, _)| *name == plain) else { return Ok(None) };
        if is_stored(images, image)? {
            let shown = if plain.is_empty() { "base" } else { plain };
            return Ok(Some(origin(image, shown)));
        }
        // Not as well furnished, but always there.
        Ok((*image == "base").then(|| origin("host", "base")))
    }
}

fn snapshot_origin(snapshot: &Snapshot) -> Origin {
    Origin {
        image: snapshot.image(),
        id: snapshot.id.clone(),
        alias: snapshot.name.clone(),
        template: None,
        resources: Resources::default(),
    }
}

/// Whether there is an image of that name that anybody may use. A path, which the store would import, is not a name.
fn is_stored(images: &Store, name: &str) -> Result<bool, LifeError> {
    if name.is_empty() || name.starts_with(['/', '.', '~']) || is_private(name) {
        return Ok(false);
    }
    if name.contains('/') {
        let short = name.strip_prefix("docker.io/").unwrap_or(name);
        let short = short.strip_prefix("library/").unwrap_or(short);
        let (_, tag) = names::split(short);
        let full = if tag.is_some() || short.contains('@') { short.to_owned() } else { format!("{short}:latest") };
        return Ok(images.list()?.iter().any(|image| image.name == full));
    }
    match images.resolve(name) {
        Ok(_) => Ok(true),
        Err(ImageError::Unknown { .. } | ImageError::BadName { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_was_pulled_belongs_to_who_pulled_it() {
        let (mine, theirs) = (pulled_name("me", "r.example.com/a/b"), pulled_name("them", "r.example.com/a/b"));
        assert!(mine != theirs && is_private(&mine) && is_private(&theirs));
        assert_ne!(pulled_name("a", "b:c"), pulled_name("a\0b", ":c"));
    }

    #[test]
    fn only_names_of_images_for_everybody_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let images = Store::open(folder.path()).unwrap();
        assert!(is_stored(&images, "host").unwrap());
        for name in [
            "",
            "/",
            "/etc",
            "./x",
            "~/x",
            "../..",
            "etc/ssh",
            "nothing",
            "template-a:b",
            "snapshot-a",
            "pulled-a",
            "a b",
        ] {
            assert!(!is_stored(&images, name).unwrap(), "{name}");
        }
    }
}
