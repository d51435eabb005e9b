# frozen_string_literal: true

desc "Fetch the real models of rakelib/support/models.yml into the user's cache"
task :models do
  require_relative "support/models"
  Tasks::Models.usual.each { |model| puts Tasks::Models.path(model.id) }
end

namespace :models do
  desc "Fetch the large ones too, which only `rake spec:large` needs (520 MB)"
  task large: :models do
    Tasks::Models.large.each { |model| puts Tasks::Models.path(model.id) }
  end
end
