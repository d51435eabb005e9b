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
end
