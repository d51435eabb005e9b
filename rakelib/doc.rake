# frozen_string_literal: true

desc "Write the API documentation into doc/"
begin
  require "yard"
  YARD::Rake::YardocTask.new(:doc)
rescue LoadError
  task(:doc) { abort "rake doc needs the yard gem: bundle install" }
end

namespace :doc do
  desc "Fail unless every public method is documented, and every documented one exists"
  task :coverage do
    require_relative "support/doc_coverage"
    Tasks::DocCoverage.new.run
  end

  desc "Write the messages of all errors into docs/reference/errors.md"
  task :errors do
    require_relative "support/error_table"
    Tasks::ErrorTable.new.write
  end

  desc "Write the supported model types into docs/reference/models.md and their number into README.md"
  task :models do
    $LOAD_PATH.unshift(File.expand_path("../lib", __dir__))
    require "candle"
    require_relative "support/model_table"
    Tasks::ModelTable.new(Tasks::ModelTable.supported).write
  end

  desc "Draw what classes for images return into docs/guides/gallery"
  task :gallery do
    $LOAD_PATH.unshift(File.expand_path("../lib", __dir__))
    require "candle"
    require_relative "support/gallery"
    Tasks::Gallery.new.write
  end

  desc "Run the examples of README, docs/, YARD comments and examples/"
  task :examples do
    require_relative "support/doc_examples"
    Tasks::DocExamples.new.run
  end
end
