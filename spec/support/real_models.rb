# frozen_string_literal: true

require_relative "../../rakelib/support/models"

# Real checkpoints for specs, fetched once into the user's cache.
module RealModels
  module_function

  # @param id [String] an id of rakelib/support/models.yml
  # @return [String] the directory with the model's files
  def path(id)
    Tasks::Models.path(id)
  end

  # The same for specs that must tell "can't be fetched here" from "is not what it should be".
  #
  # @return [Array(String, nil), Array(nil, String)] the directory, or why its package can't be fetched
  def try(id)
    [path(id), nil]
  rescue RuntimeError => e
    raise unless e.message.start_with?("Command failed")

    [nil, "the package of #{id} can't be fetched: #{e.message}"]
  rescue Errno::ENOENT => e
    [nil, "the package of #{id} can't be fetched: #{e.message}"]
  end
end

# In groups about a real model: the directory, or the examples are reported as skipped, by name.
RSpec.shared_context "with the real model" do |id|
  let(:real_path) do
    found, reason = RealModels.try(id)
    found || skip(reason)
  end
end
