# frozen_string_literal: true

RSpec.describe "candle/active_record and candle/jobs without Rails" do
  it "load, and say what is missing when they are used" do
    output, errors, status = run_ruby(<<~RUBY, { "RUBYLIB" => nil })
      require "candle/active_record"
      require "candle/jobs"
      print [defined?(ActiveRecord::Base), defined?(Sidekiq), defined?(Rails)].compact.size, " "
      begin
        Candle::Jobs.embed(["fox"])
      rescue Candle::Error => e
        print e.message
      end
    RUBY
    expect(status).to be_success, errors
    expect(output).to eq("0 Candle::Jobs keeps its progress in a database: require \"active_record\" and connect it")
    expect(errors).to be_empty
  end

  it "are not loaded by the gem itself" do
    output, = run_ruby("print $LOADED_FEATURES.grep(%r{candle/(active_record|jobs|model_registry)}).size")
    expect(output).to eq("0")
  end

  it "add no dependency to the gem" do
    specification = Gem::Specification.load(File.join(ProjectFiles::ROOT, "red-candle.gemspec"))
    expect(specification.dependencies.map(&:name)).to contain_exactly("logger", "reline", "thor", "rb_sys")
    expect(specification.files).to include("lib/generators/candle/embedding/templates/migration.rb.tt",
                                           "lib/candle/active_record/railtie.rb")
  end
end
