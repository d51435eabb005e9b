//! Tests of the sampler.

use kernels::sampling::reference;

use super::*;

const LOGITS: [f32; 6] = [2.0, 1.0, 0.5, -1.0, -2.0, 0.0];

fn config() -> GenerationConfig {
    GenerationConfig {
        temperature: 1.0,
        seed: 7,
        ..Default::default()
    }
}

fn softmax(scores: &[f64]) -> Vec<f64> {
    let total: f64 = scores.iter().map(|s| s.exp()).sum();
    scores.iter().map(|s| s.exp() / total).collect()
}

/// Draws often and compares with `expected` by Pearson's statistic. The bound is the 99.99 %
/// point of chi-square with five degrees of freedom; the seed is fixed.
fn assert_distribution(config: GenerationConfig, prompt: &[u32], expected: &[f64]) {
    const DRAWS: usize = 40_000;
    let mut counts = vec![0usize; LOGITS.len()];
    let mut random = Random::new(config.seed);
    for _ in 0..DRAWS {
        let mut config = config.clone();
        config.seed = random.next_u64();
        let mut sampler = Sampler::new(config, prompt).unwrap();
        counts[sampler.sample(&LOGITS, None).unwrap().token as usize] += 1;
    }
    let mut statistic = 0.0;
    for (count, share) in counts.iter().zip(expected) {
        let wanted = share * DRAWS as f64;
        if *share == 0.0 {
            assert_eq!(*count, 0, "{counts:?} against {expected:?}");
        } else {
            statistic += (*count as f64 - wanted).powi(2) / wanted;
        }
    }
    assert!(statistic < 25.7, "{statistic}: {counts:?} {expected:?}");
}

fn only(kept: &[usize], scores: &[f64]) -> Vec<f64> {
    let masked: Vec<f64> = scores
        .iter()
        .enumerate()
        .map(|(i, &s)| {
            if kept.contains(&i) {
                s
            } else {
                f64::NEG_INFINITY
            }
        })
        .collect();
    softmax(&masked)
}

fn plain() -> Vec<f64> {
    LOGITS.iter().map(|&l| f64::from(l)).collect()
}

#[test]
fn temperature_scales_the_logits() {
    let mut config = config();
    config.temperature = 0.7;
    let scaled: Vec<f64> = plain().iter().map(|l| l / f64::from(0.7f32)).collect();
    assert_distribution(config, &[], &softmax(&scaled));
}

#[test]
fn top_k_keeps_the_best() {
    let config = GenerationConfig {
        top_k: Some(3),
        ..config()
    };
    assert_distribution(config, &[], &only(&[0, 1, 2], &plain()));
}

#[test]
fn top_p_keeps_the_smallest_set_that_reaches_it() {
    // Shares: .544 .200 .121 .027 .010 .074 (rounded); .544 + .200 < .8 <= .544 + .200 + .121
    let config = GenerationConfig {
        top_p: Some(0.8),
        ..config()
    };
    assert_distribution(config, &[], &only(&[0, 1, 2], &plain()));
}

#[test]
fn min_p_is_relative_to_the_best() {
    // exp(1 - 2) = .37 and exp(.5 - 2) = .22 pass .2, exp(0 - 2) = .135 does not
    let config = GenerationConfig {
        min_p: Some(0.2),
        ..config()
    };
    assert_distribution(config, &[], &only(&[0, 1, 2], &plain()));
}

#[test]
fn repetition_penalty_divides_positive_and_multiplies_negative_logits_of_prompt_tokens() {
    let config = GenerationConfig {
        repetition_penalty: 1.5,
        ..config()
    };
    let penalized = [2.0 / 1.5, 1.0, 0.5, -1.5, -2.0, 0.0];
    assert_distribution(config, &[0, 3, 0], &softmax(&penalized));
}

#[test]
fn repetition_penalty_may_look_at_the_latest_tokens_only() {
    let config = GenerationConfig {
        repetition_penalty: 1.5,
        repetition_penalty_last_n: Some(1),
        ..config()
    };
    let penalized = [2.0, 1.0, 0.5, -1.5, -2.0, 0.0];
    assert_distribution(config, &[0, 3], &softmax(&penalized));
}

#[test]
fn presence_and_frequency_count_generated_tokens_only() {
    let config = GenerationConfig {
        temperature: 0.0,
        presence_penalty: 0.25,
        frequency_penalty: 0.5,
        ..config()
    };
    let mut sampler = Sampler::new(config, &[0, 0, 0]).unwrap();
    let drawn: Vec<u32> = (0..4)
        .map(|_| sampler.sample(&LOGITS, None).unwrap().token)
        .collect();
    // 2.0 → 1.25 → .75 once and twice drawn; token 1 stands at 1.0, then at .25
    assert_eq!(drawn, [0, 0, 1, 0]);
}

/// Rows with ties, both zeros and numbers that are not finite.
fn awkward(seed: u64, width: usize) -> Vec<f32> {
    let mut random = Random::new(seed);
    let number = |place: usize| match (place + seed as usize) % 11 {
        0 => f32::NAN,
        1 => f32::INFINITY,
        2 => f32::NEG_INFINITY,
        _ => ((random.next_f64() - 0.5) * 8.0).round() as f32,
    };
    (0..width).map(number).collect()
}

fn largest(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let finite = |(_, logit): &(u32, f32)| logit.is_finite();
    let mut all: Vec<_> = (0..).zip(logits.iter().copied()).filter(finite).collect();
    all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap());
    all.truncate(count);
    all.sort_by_key(|&(token, _)| token);
    all
}

#[test]
fn the_largest_logits_give_the_tokens_that_all_give() {
    let with = |top_k, temperature, top_p, min_p| GenerationConfig {
        top_k,
        temperature,
        top_p,
        min_p,
        ..config()
    };
    let configs = [
        with(None, 0.0, None, None),
        with(Some(1), 0.7, None, None),
        with(Some(5), 1.0, None, None),
        with(Some(5), 1.3, Some(0.6), None),
        with(Some(12), 0.8, Some(0.9), Some(0.2)),
        with(Some(40), 1.0, None, Some(0.1)),
    ];
    for config in configs {
        let mut of_all = Sampler::new(config.clone(), &[]).unwrap();
        let mut of_largest = of_all.clone();
        for seed in 0..60 {
            let logits = awkward(seed, 30);
            let Needs::Largest(count) = of_largest.needs(0) else {
                panic!("{config:?}");
            };
            let count = count + seed as usize % 3;
            let few = Scores::Largest(largest(&logits, count));
            let all = of_all.choose(&Scores::All(logits), None).unwrap();
            assert_eq!(of_largest.choose(&few, None).unwrap(), all, "{config:?}");
        }
    }
}

#[test]
fn some_settings_need_all_logits() {
    let needs = |change: fn(&mut GenerationConfig)| {
        let mut config = GenerationConfig {
            top_k: Some(5),
            ..config()
        };
        change(&mut config);
        Sampler::new(config, &[]).unwrap().needs(0)
    };
    assert_eq!(needs(|_| {}), Needs::Largest(6));
    assert_eq!(needs(|config| config.temperature = 0.0), Needs::Largest(1));
    assert_eq!(needs(|config| config.logprobs = Some(0)), Needs::All);
    assert_eq!(needs(|config| config.repetition_penalty = 1.1), Needs::All);
    assert_eq!(needs(|config| config.presence_penalty = 0.1), Needs::All);
    assert_eq!(needs(|config| config.frequency_penalty = 0.1), Needs::All);
}

/// What a device finds of logits gives the tokens that all logits give, draw after draw.
#[test]
fn what_a_device_finds_gives_the_tokens_that_all_logits_give() {
    let with = |temperature, top_p, min_p| GenerationConfig {
        temperature,
        top_p,
        min_p,
        ..config()
    };
    let configs = [
        with(1.0, None, None),
        with(0.4, Some(1.0), Some(0.0)),
        with(0.7, Some(0.9), None),
        with(1.5, Some(0.5), Some(0.1)),
        with(1.0, None, Some(0.2)),
    ];
    for config in configs {
        let mut of_all = Sampler::new(config.clone(), &[]).unwrap();
        let mut of_found = of_all.clone();
        for seed in 0..60 {
            let logits = awkward(seed, 30);
            let needs = of_found.needs(0);
            assert_eq!(of_found.needs(3), advanced(&of_found, 3).needs(0));
            let found = reference(&logits, &needs.want());
            let scores = needs.met(found).unwrap();
            let all = of_all.choose(&Scores::All(logits), None).unwrap();
            assert_eq!(of_found.choose(&scores, None).unwrap(), all, "{config:?}");
        }
    }
}

fn advanced(sampler: &Sampler, draws: usize) -> Sampler {
    let mut sampler = sampler.clone();
    (0..draws).for_each(|_| {
        sampler.random.next_f64();
    });
    sampler
}

#[test]
fn the_same_seed_gives_the_same_tokens_and_another_seed_others() {
    let draw = |seed| {
        let mut sampler = Sampler::new(GenerationConfig { seed, ..config() }, &[]).unwrap();
        (0..50)
            .map(|_| sampler.sample(&LOGITS, None).unwrap().token)
            .collect::<Vec<_>>()
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}

#[test]
fn a_mask_is_never_left() {
    let mut sampler = Sampler::new(config(), &[]).unwrap();
    for _ in 0..200 {
        let token = sampler.sample(&LOGITS, Some(&[0b011000])).unwrap().token;
        assert!(token == 3 || token == 4);
    }
    assert!(matches!(
        sampler.sample(&LOGITS, Some(&[0])),
        Err(Error::Generation(_))
    ));
}

#[test]
fn logprobs_are_the_models_own() {
    let config = GenerationConfig {
        temperature: 0.0,
        logprobs: Some(2),
        repetition_penalty: 5.0,
        ..config()
    };
    let mut sampler = Sampler::new(config, &[0]).unwrap();
    let choice = sampler.sample(&LOGITS, None).unwrap();
    let expected = softmax(&plain());
    assert_eq!(choice.token, 1);
    assert!((f64::from(choice.logprob.unwrap()) - expected[1].ln()).abs() < 1e-6);
    assert_eq!(choice.top.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn a_nucleus_of_any_size_is_what_sorting_everything_gives() {
    let mut random = Random::new(3);
    let all: Vec<(u32, f64)> = (0..3000)
        .map(|id| (id, random.next_f64().powi(4)))
        .collect();
    let mut sorted = all.clone();
    sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let total: f64 = all.iter().map(|candidate| candidate.1).sum();
    for share in [0.0, 0.01, 0.2, 0.5, 0.9, 0.999] {
        let mut sum = 0.0;
        let kept = sorted.iter().take_while(|(_, weight)| {
            let keep = sum < share * total;
            sum += weight;
            keep
        });
        let expected = kept.count().max(1);
        let mut got = all.clone();
        keep_nucleus(&mut got, share * total);
        assert_eq!(got, sorted[..expected], "{share}");
    }
}

#[test]
fn settings_out_of_range_are_refused() {
    for config in [
        GenerationConfig {
            temperature: -1.0,
            ..config()
        },
        GenerationConfig {
            temperature: f32::NAN,
            ..config()
        },
        GenerationConfig {
            top_p: Some(1.5),
            ..config()
        },
        GenerationConfig {
            top_k: Some(0),
            ..config()
        },
        GenerationConfig {
            repetition_penalty: 0.0,
            ..config()
        },
        GenerationConfig {
            stop_sequences: vec![String::new()],
            ..config()
        },
    ] {
        assert!(matches!(
            Sampler::new(config, &[]),
            Err(Error::InvalidInput(_))
        ));
    }
}

#[test]
fn nan_logits_are_an_error() {
    let mut sampler = Sampler::new(config(), &[]).unwrap();
    assert!(matches!(
        sampler.sample(&[f32::NAN; 4], None),
        Err(Error::Generation(_))
    ));
}
