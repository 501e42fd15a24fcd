//! What pools did, under the names that the field knows; and why they are as large as they are.

use sloplet_engine::life::pool::metrics::BUCKETS;
use sloplet_engine::life::pool::{Bound, PoolStatus, Source, Wish};

use super::Page;

type Figure<'a> = (&'static str, &'static str, &'static str, &'a dyn Fn(&PoolStatus) -> f64);

/// All of them.
pub fn write(page: &mut Page, all: &[PoolStatus]) {
    if all.is_empty() {
        return;
    }
    let all: Vec<(String, &PoolStatus)> = all.iter().map(|pool| (label(pool), pool)).collect();
    figures(page, &all);
    page.family("sandbox_pool_bound", "gauge", "What its size comes from: 1 for one of them.");
    for (label, pool) in &all {
        for bound in Bound::ALL {
            let is = pool.wish.is_some_and(|wish| wish.bound == bound);
            let label = format!("{label},bound=\"{}\"", bound.name());
            page.sample("sandbox_pool_bound", &label, f64::from(u8::from(is)));
        }
    }
    acquires(page, &all);
    let mut counts = |name: &str, help: &str, key: &str, of: &dyn Fn(&PoolStatus) -> Vec<(String, u64)>| {
        page.family(name, "counter", help);
        for (label, pool) in &all {
            for (value, count) in of(pool) {
                page.sample(name, &format!("{label},{key}=\"{value}\""), count as f64);
            }
        }
    };
    counts("sandbox_create_total", "Machines that were made ahead, or could not be.", "success", &|pool| {
        vec![("true".into(), pool.counters.created), ("false".into(), pool.counters.failed_creates)]
    });
    counts("sandbox_scale_events", "Machines begun or given up to change its size.", "direction", &|pool| {
        vec![("up".into(), pool.counters.scale_up_events), ("down".into(), pool.counters.scale_down_events)]
    });
    counts("sandbox_pool_misfits_total", "Claims that no waiting machine could become.", "reason", &|pool| {
        pool.counters.misfits.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect()
    });
}

/// Names of pools and owners hold nothing that would have to be escaped.
fn label(pool: &PoolStatus) -> String {
    format!("pool=\"{}\",owner=\"{}\"", pool.record.name, pool.record.owner)
}

fn figures(page: &mut Page, all: &[(String, &PoolStatus)]) {
    let wish = |pool: &PoolStatus, part: fn(&Wish) -> f64| pool.wish.as_ref().map_or(0.0, part);
    let figures: [Figure<'_>; 15] = [
        ("sandbox_pool_ready", "gauge", "Machines that wait.", &|pool| pool.ready.into()),
        ("sandbox_pool_creating", "gauge", "Machines that are being made.", &|pool| pool.creating.into()),
        ("sandbox_pool_in_use", "gauge", "Sandboxes that came through it.", &|pool| pool.in_use.into()),
        ("sandbox_acquire_refused_total", "counter", "Claims that were not served.", &|pool| {
            pool.counters.refused as f64
        }),
        ("sandbox_pool_health_check_removals_total", "counter", "Given up because they were not well.", &|pool| {
            pool.counters.health_check_removals as f64
        }),
        ("sandbox_pool_expired_total", "counter", "Given up because of their age or image.", &|pool| {
            pool.counters.expired as f64
        }),
        ("sandbox_pool_demand_per_second", "gauge", "Claims a second, smoothed.", &|pool| wish(pool, |wish| wish.rate)),
        ("sandbox_pool_lead_seconds", "gauge", "What making a machine takes.", &|pool| wish(pool, |wish| wish.lead)),
        ("sandbox_pool_expected", "gauge", "Claims expected until one is replaced.", &|pool| {
            wish(pool, |wish| wish.expected)
        }),
        ("sandbox_pool_headroom", "gauge", "Kept beyond that for bursts.", &|pool| wish(pool, |wish| wish.headroom)),
        ("sandbox_pool_wanted", "gauge", "Machines that are to be ready.", &|pool| {
            wish(pool, |wish| wish.wanted.into())
        }),
        ("sandbox_pool_target", "gauge", "Kept whatever the demand.", &|pool| pool.record.config.target_ready.into()),
        ("sandbox_pool_max", "gauge", "The most that may wait.", &|pool| pool.record.config.max_ready.into()),
        ("sandbox_pool_dollars_per_hour", "gauge", "What those that wait cost in an hour.", &|pool| {
            pool.price_per_hour * f64::from(pool.ready)
        }),
        ("sandbox_pool_dollars_today", "gauge", "What waiting has cost today (UTC).", &|pool| {
            pool.record.spent.dollars
        }),
    ];
    for (name, kind, help, figure) in figures {
        page.family(name, kind, help);
        all.iter().for_each(|(label, pool)| page.sample(name, label, figure(pool)));
    }
}

fn acquires(page: &mut Page, all: &[(String, &PoolStatus)]) {
    let each = || {
        all.iter().flat_map(|(label, pool)| {
            let with_source =
                move |source: Source| (format!("{label},source=\"{}\"", source.name()), pool.counters.latency(source));
            Source::ALL.map(with_source)
        })
    };
    page.family("sandbox_acquire_total", "counter", "Claims that were served.");
    each().for_each(|(label, latency)| page.sample("sandbox_acquire_total", &label, latency.count as f64));
    let name = "sandbox_acquire_latency_ms";
    page.family(name, "histogram", "Time until a claim was served.");
    for (label, latency) in each() {
        for (bound, within) in BUCKETS.iter().zip(latency.within) {
            page.sample(&format!("{name}_bucket"), &format!("{label},le=\"{bound}\""), within as f64);
        }
        page.sample(&format!("{name}_bucket"), &format!("{label},le=\"+Inf\""), latency.count as f64);
        page.sample(&format!("{name}_sum"), &label, latency.sum_ms);
        page.sample(&format!("{name}_count"), &label, latency.count as f64);
    }
}
