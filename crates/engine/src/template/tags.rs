//! Tags: names for one build of a template.

use super::names::{self, DEFAULT_TAG};
use super::record::{Build, Tag, Template};
use super::registry::{Templates, not_found};
use crate::life::LifeError;
use crate::life::clock::now_ms;

/// Tags of one template.
const MAX_TAGS: usize = 1000;

impl Templates {
    /// Gives the build that `name:tag` means more tags; tells which build that is.
    pub fn assign_tags(&self, owner: &str, target: &str, tags: &[String]) -> Result<String, LifeError> {
        let tags = tags.iter().map(|tag| names::tag(tag)).collect::<Result<Vec<_>, _>>()?;
        if tags.is_empty() {
            return Err(LifeError::Invalid("name at least one tag".into()));
        }
        let (name, tag) = names::split(target);
        let changing = self.0.change();
        let mut template = self.get(owner, name)?;
        let build = template.tagged(tag)?.build.clone();
        for tag in tags {
            template.tags.insert(tag, Tag { build: build.clone(), assigned_ms: now_ms() });
        }
        if template.tags.len() > MAX_TAGS {
            return Err(LifeError::Invalid(format!("a template has at most {MAX_TAGS} tags")));
        }
        let unused = self.save_tags(template)?;
        drop(changing);
        self.0.remove_images(&unused)?;
        Ok(build)
    }

    /// Takes tags away. A build without any is not kept.
    pub fn remove_tags(&self, owner: &str, name: &str, tags: &[String]) -> Result<(), LifeError> {
        let changing = self.0.change();
        let mut template = self.get(owner, name)?;
        for tag in tags {
            if template.tags.remove(tag).is_none() {
                return Err(not_found("tag", tag));
            }
        }
        let unused = self.save_tags(template)?;
        drop(changing);
        self.0.remove_images(&unused)
    }

    /// Returns the builds whose images nothing needs any more.
    fn save_tags(&self, mut template: Template) -> Result<Vec<Build>, LifeError> {
        template.updated_ms = now_ms();
        self.0.templates.put(&template)?;
        self.0.thin_out(&template)
    }
}

impl Template {
    /// The build that a tag means; without one, the default tag's or else the newest.
    pub(super) fn tagged(&self, tag: Option<&str>) -> Result<&Tag, LifeError> {
        let found = match tag {
            Some(tag) => self.tags.get(tag),
            None => {
                let newest = || self.tags.values().max_by_key(|tag| tag.assigned_ms);
                self.tags.get(DEFAULT_TAG).or_else(newest)
            }
        };
        found.ok_or_else(|| match tag {
            Some(tag) => not_found("template", &format!("{}:{tag}", self.name)),
            // As E2B answers: until a build succeeds, there is nothing to start from.
            None => not_found("finished build of template", &self.name),
        })
    }
}
