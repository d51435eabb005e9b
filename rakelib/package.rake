# frozen_string_literal: true

namespace :package do
  desc "Install the precompiled gem into an empty GEM_HOME without Rust on the PATH, and use it"
  task check: %i[native gem] do
    require_relative "support/package_check"
    Tasks::PackageCheck.new(GEMSPEC).run
  end
end
