//! Which experts a token passes, and how much each counts.

use super::config::{Experts, Scoring};

/// The experts of one token, in the order of their choice, with their weights.
pub type Choice = Vec<(usize, f32)>;

/// `logits` has one per expert; `bias` is added to scores for the choice alone.
pub fn choose(experts: &Experts, logits: &[f32], bias: Option<&[f32]>) -> Choice {
    let squeezed: Vec<f32>;
    let logits = match experts.soft_cap {
        Some(cap) => {
            squeezed = logits.iter().map(|x| (x / cap).tanh() * cap).collect();
            &squeezed[..]
        }
        None => logits,
    };
    if let Scoring::SparseMixer { jitter } = experts.scoring {
        return sparse_mixer(logits, experts.used, jitter);
    }
    let scores = scores(experts.scoring, logits);
    let mut ranked = match experts.scoring {
        Scoring::SigmoidOfChosen => logits.to_vec(),
        _ => scores.clone(),
    };
    for (score, bias) in ranked.iter_mut().zip(bias.unwrap_or_default()) {
        *score += bias;
    }
    leave_out_groups(experts, &mut ranked);
    let mut choice: Choice = largest(&ranked, experts.used)
        .into_iter()
        .map(|expert| (expert, scores[expert]))
        .collect();
    let total: f32 = choice.iter().map(|(_, weight)| weight).sum();
    let factor = if experts.normalize {
        experts.scale / total.max(experts.least_total)
    } else {
        experts.scale
    };
    for (_, weight) in &mut choice {
        *weight *= factor;
    }
    choice
}

fn scores(scoring: Scoring, logits: &[f32]) -> Vec<f32> {
    match scoring {
        Scoring::Sigmoid | Scoring::SigmoidOfChosen => {
            logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect()
        }
        Scoring::Softmax | Scoring::SparseMixer { .. } => softmax(logits),
    }
}

fn softmax(logits: &[f32]) -> Vec<f32> {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f32> = logits.iter().map(|x| (x - top).exp()).collect();
    let total: f32 = powers.iter().sum();
    powers.into_iter().map(|power| power / total).collect()
}

/// The places of the `count` largest, the largest first; of equal ones the first.
fn largest(values: &[f32], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
    order.truncate(count);
    order
}

/// Experts outside of the best groups can't be chosen before all others (DeepSeek).
fn leave_out_groups(experts: &Experts, ranked: &mut [f32]) {
    let Some(groups) = experts.groups else { return };
    let size = ranked.len() / groups.count.max(1);
    if size == 0 || groups.used >= groups.count {
        return;
    }
    let standing: Vec<f32> = ranked
        .chunks(size)
        .map(|group| {
            let best = largest(group, groups.best_of);
            best.into_iter().map(|expert| group[expert]).sum()
        })
        .collect();
    let kept = largest(&standing, groups.used);
    for (group, ranked) in ranked.chunks_mut(size).enumerate() {
        if !kept.contains(&group) {
            ranked.fill(groups.left_out);
        }
    }
}

/// Phi-3.5-MoE: each choice is weighed among those that come close to it.
fn sparse_mixer(logits: &[f32], used: usize, jitter: f32) -> Choice {
    let mut left = logits.to_vec();
    let mut choice = Choice::new();
    for _ in 0..used {
        let Some(&best) = largest(&left, 1).first() else {
            break;
        };
        let top = left[best];
        let near: Vec<f32> = left
            .iter()
            .zip(logits)
            .map(|(&score, logit)| {
                let far = (top - logit) / logit.abs().max(top) > 2.0 * jitter;
                if far {
                    f32::NEG_INFINITY
                } else {
                    score
                }
            })
            .collect();
        choice.push((best, softmax(&near)[best]));
        left[best] = f32::NEG_INFINITY;
    }
    choice
}

#[cfg(test)]
mod tests {
    use super::super::config::Groups;
    use super::*;

    fn experts(scoring: Scoring) -> Experts {
        Experts {
            count: 4,
            used: 2,
            scoring,
            ..Experts::softmax(4, 2, 1)
        }
    }

    #[test]
    fn the_likeliest_are_chosen_and_their_weights_sum_to_one() {
        let mut config = experts(Scoring::Softmax);
        config.normalize = true;
        let choice = choose(&config, &[0.0, 2.0, 1.0, -1.0], None);
        assert_eq!(choice.iter().map(|c| c.0).collect::<Vec<_>>(), [1, 2]);
        assert!((choice.iter().map(|c| c.1).sum::<f32>() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn a_bias_changes_the_choice_but_no_weight() {
        let config = experts(Scoring::Sigmoid);
        let choice = choose(&config, &[0.0, 2.0, 1.0, -1.0], Some(&[5.0, 0.0, 0.0, 0.0]));
        assert_eq!(choice[0], (0, 0.5));
        assert_eq!(choice[1].0, 1);
    }

    #[test]
    fn groups_that_are_left_out_give_no_expert() {
        let mut config = experts(Scoring::Softmax);
        config.groups = Some(Groups {
            count: 2,
            used: 1,
            best_of: 1,
            left_out: 0.0,
        });
        let choice = choose(&config, &[3.0, -4.0, 2.0, 1.0], None);
        assert_eq!(choice.iter().map(|c| c.0).collect::<Vec<_>>(), [0, 1]);
    }
}
