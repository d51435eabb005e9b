# frozen_string_literal: true

# Numbers, or nested lists of them, within a tolerance.
RSpec::Matchers.define :be_near do |*arguments|
  reference, tolerance = *arguments, 1e-4

  def largest_difference(found, reference)
    return (found - reference).abs unless reference.is_a?(Array)
    return Float::INFINITY unless found.is_a?(Array) && found.size == reference.size

    found.zip(reference).map { |one, other| largest_difference(one, other) }.max || 0.0
  end

  match { |actual| largest_difference(actual, reference) <= tolerance }
  failure_message do |actual|
    "expected a difference of at most #{tolerance}, not #{largest_difference(actual, reference)}"
  end
end
