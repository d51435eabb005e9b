# frozen_string_literal: true

desc "Fetch the real models of rakelib/support/models.yml into the user's cache"
task :models do
  require_relative "support/models"
  Tasks::Models.all.each { |model| puts Tasks::Models.path(model.id) }
end
